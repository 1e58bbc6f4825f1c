"""The algorithm: tensors in, tensors out. No files, no network, no printing. Start with `round.py`.

`cohort.py`, `candidates.py` and `evaluation.py` are steps of a round. `method.py` has the parts
of the formula, `types.py` what passes between them, and `engine.py` what a round asks of clients. The parts are in
`criteria.py`, `weights/`, `evidence/`, `aggregation/`, `objective/`, `feedback.py`, `sampling.py` and `training.py`.
"""
