"""Placeholder for a first try."""
from rounds import Parties, some_terms
import numpy
def test_sum():
    p = Parties(some_terms())
    for purpose,(who,total) in p.run().items():
        assert who==[0,1,2,3,4]
        assert numpy.array_equal(total, p.plain_sum(purpose, who))
def test_drop():
    for step in some_terms().steps:
        p = Parties(some_terms(), replies=lambda s,c,m: None if (s,c)==(step,3) else m)
        for purpose,(who,total) in p.run().items():
            assert numpy.array_equal(total, p.plain_sum(purpose, who)), (step, purpose)
        print(step, who, p.refusals, p.server.dropped)
