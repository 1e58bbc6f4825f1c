"""From weighted updates to the next model.

`before.py` has the steps before the rule, `rules.py` the rules, and `server_step.py` the server steps. Rules share
`robust.py`. `sums.py` has the mean of models that arrive one by one, and that of LoRA adapters.
"""
