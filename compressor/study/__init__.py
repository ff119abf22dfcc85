"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

`options` has a request for each, which names its function: from a model, rows and the request to a
`Result`. `run.run_study` is the only entry.
"""
