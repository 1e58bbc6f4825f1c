"""Running an experiment: `runner.py` opens the run folder, and `lanes.py` runs rounds and records them.

Also here: resuming, the origin of data and versions, Ray, and finished runs that are run again.
"""
