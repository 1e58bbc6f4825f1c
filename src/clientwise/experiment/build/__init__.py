"""From a config to what runs: samples and clients of a seed, the network, the engine and the plan."""
