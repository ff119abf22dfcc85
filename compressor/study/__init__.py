"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

`options` has a request for each study, which names the function that carries it out.
`run.run_study` is the only entry. docs/studies.md says what each is for.
"""
