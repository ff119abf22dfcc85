"""Options: declared by classes that have them, composed to requests, checked with each other.

`declare` is how a class declares an option; `assemble` makes a request of flags and a recipe file,
and has it check what does not go together; `recipe` has what `compress run` takes, `requests` what
the other commands do, `sections` the options that belong to no method, budget or recovery, and
`validate` what does not go with a device or a model.
"""
