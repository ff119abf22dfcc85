"""The steps of a run: how results are kept (`store`), and what steps hand on (`values`, `results`).

`context` is what is the same in a whole run or command.
"""
