"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

`options` has a request for each, which names the function that computes it: from a model, rows and
the request to a `Result` of numbers, sentences, tables and a plot. `run.run_study` is the only
entry. `docs/studies.md` says what each is for and what its columns mean.
"""
