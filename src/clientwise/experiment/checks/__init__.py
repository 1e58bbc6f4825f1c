"""What is refused or doubted before a run.

`combinations.py` checks the config alone, when it is loaded. `against_data.py` checks it with its data, and `trial.py`
tries a client. `doubts.py` and `data_doubts.py` warn. Other files have the refusals of one subject.
"""
