"""The protocol of secure aggregation: masked sums of which the server learns only the total.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (2017), with
signed keys and the consistency check against a server that deviates. See docs/privacy.md.
"""
