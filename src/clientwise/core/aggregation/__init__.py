"""From weighted updates to the next model: steps before the rule, rules, the server step."""
