"""The sections of a report, each a function of the series it shows."""

from .adapters import adapters_section
from .best_rounds import best_rounds_section
from .clients import clients_section
from .contributions import contributions_section, gains_section
from .cost import cost_section
from .curves import curves_section
from .loops import classes_section, priority_section
from .other_weights import counterfactuals_section
from .privacy import privacy_section
from .refusals import refusals_section
from .result import result_section
from .targets import targets_section
from .weights import weights_section

__all__ = [
    "adapters_section",
    "best_rounds_section",
    "classes_section",
    "clients_section",
    "contributions_section",
    "cost_section",
    "counterfactuals_section",
    "curves_section",
    "gains_section",
    "priority_section",
    "privacy_section",
    "refusals_section",
    "result_section",
    "targets_section",
    "weights_section",
]
