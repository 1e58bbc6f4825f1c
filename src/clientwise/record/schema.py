"""The tables of run.sqlite: what happened in a run, per round and per client.

A database of another format is refused: the first change after a release needs a new SCHEMA_VERSION.
"""

from __future__ import annotations

DATABASE = "run.sqlite"
SCHEMA_VERSION = 11  # a database says its own in `PRAGMA user_version`

# Tables with rows about a round, by the columns `lane` and `round_num`.
TABLES_BY_ROUND = (
    "policies",
    "rounds",
    "kept",
    "clock",
    "privacy",
    "adapters",
    "server_steps",
    "participants",
    "refusals",
    "omitted",
    "look_back",
    "criteria",
    "packed",
    "local",
    "sampled",
    "counterfactuals",
    "contributions",
    "best",
    "sums",
)

# One statement each.
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS facts (  -- about the whole run; values are JSON
    key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS lanes (  -- one method with one seed
    lane INTEGER PRIMARY KEY, method TEXT, seed INTEGER, finished INTEGER DEFAULT 0,
    UNIQUE (method, seed))""",
    """CREATE TABLE IF NOT EXISTS clients (  -- the clients of a seed
    seed INTEGER, client INTEGER, name TEXT,
    num_train INTEGER, num_test INTEGER,
    hostile TEXT,  -- name of the attack; NULL: honest
    PRIMARY KEY (seed, client)) WITHOUT ROWID""",
    """CREATE INDEX IF NOT EXISTS hostile_clients
    ON clients (seed) WHERE hostile IS NOT NULL""",
    """CREATE TABLE IF NOT EXISTS policies (  -- the bounds on weights, from this round on
    lane INTEGER, round_num INTEGER,
    policy TEXT, note TEXT,  -- [methods.bounds] as JSON, and why it is so
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS rounds (
    lane INTEGER, round_num INTEGER,
    metric REAL, macro_f1 REAL, loss REAL,  -- on the server's reporting part; the problem's metric
    local_mean REAL, local_p10 REAL, local_p90 REAL,  -- over the honest clients' own test sets
    reached TEXT,  -- what 10, 20 ... 90%, and 75%, of the honest clients reach on their test sets
    priority TEXT, candidates TEXT, testing_rounds INTEGER,
    class_weights TEXT, loss_shape REAL, per_class_f1 TEXT,
    no_effect TEXT, notes TEXT, seconds REAL, models_moved INTEGER, evaluations INTEGER,
    attack_success REAL,  -- of simulated backdoors
    held_out_change REAL,  -- of the loss by the round, on the samples that the server weighs by
    machine INTEGER,  -- that computed it, as the fact `machines` counts them from 1; NULL: not recorded
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS kept (  -- rounds that kept the model of the round before
    lane INTEGER, round_num INTEGER,
    cause TEXT, detail TEXT,  -- see `core/reasons.py`
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS clock (  -- empty where clients take no time
    lane INTEGER, round_num INTEGER,
    ended REAL,  -- seconds since the run began
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS privacy (  -- of methods with differential privacy
    lane INTEGER, round_num INTEGER,
    epsilon REAL,  -- spent by all rounds so far
    clip REAL, deviation REAL,  -- the clipping norm, and the standard deviation of the noise
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS adapters (  -- of methods that average products of LoRA adapters
    lane INTEGER, round_num INTEGER,
    residual REAL,  -- share of the mean's Frobenius norm that the adapters' rank leaves out
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS server_steps (  -- of methods that try several server steps
    lane INTEGER, round_num INTEGER, position INTEGER,
    step TEXT, loss REAL,  -- its name, and the loss of its model on the server's samples
    used INTEGER,  -- 1: its model is the round's
    PRIMARY KEY (lane, round_num, position)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS participants (  -- every update that arrived
    lane INTEGER, round_num INTEGER,
    client INTEGER,  -- NULL: all accepted updates of a large round; see `packed.py`
    refusal TEXT,  -- NULL: accepted
    score REAL, prior REAL, z REAL,
    harm REAL, harm_error REAL,  -- of the held-out loss; see `evidence/significance.py`
    posterior REAL, weight REAL,
    influence REAL,  -- NULL where the rule is the mean
    training_loss REAL, seconds REAL)""",
    # No index by client: its rows would be written all over the file, and a round of a thousand
    # clients would take twice as long to write.
    """CREATE INDEX IF NOT EXISTS participants_by_round
    ON participants (lane, round_num, client, weight)""",
    """CREATE INDEX IF NOT EXISTS refused_participants
    ON participants (lane) WHERE refusal IS NOT NULL""",
    """CREATE TABLE IF NOT EXISTS refusals (  -- of all participants, also of those without rows
    lane INTEGER, round_num INTEGER, reason TEXT,
    kind TEXT,  -- see `core/reasons.py`; NULL: any other
    refused INTEGER, honest INTEGER,  -- updates, and how many of them are of honest clients
    PRIMARY KEY (lane, round_num, reason)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS omitted (  -- participants without rows, in rounds that have some
    lane INTEGER, round_num INTEGER,
    accepted INTEGER, without_weight INTEGER, weight REAL, hostile_weight REAL,
    refusals TEXT,  -- JSON: [reason, how many, how many of them honest]
    scores REAL, scales TEXT,  -- of all participants: the sum; what each criterion is divided by
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS look_back (  -- of methods whose evidence compares directions
    lane INTEGER, round_num INTEGER, client INTEGER,
    history_z REAL,  -- against the client's own past, in standard errors; NULL: too short a past
    copies REAL,  -- updates of the round that are almost equal to it, itself included
    PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS criteria (
    lane INTEGER, round_num INTEGER, client INTEGER,
    criterion TEXT, raw REAL, normalised REAL,
    PRIMARY KEY (lane, round_num, client, criterion)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS packed (  -- columns of `participants` and `criteria` in large rounds
    lane INTEGER, round_num INTEGER, name TEXT, data BLOB,
    PRIMARY KEY (name, lane, round_num))""",
    """CREATE TABLE IF NOT EXISTS local (  -- a client's own test set, in rounds that evaluate it
    lane INTEGER, round_num INTEGER, client INTEGER, metric REAL, loss REAL,
    PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS sampled (  -- of rounds that evaluate a random sample of the clients
    lane INTEGER, round_num INTEGER,
    drawn INTEGER,  -- clients in the sample
    error REAL,  -- standard error of local_mean; NULL: fewer than two have test data
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS counterfactuals (  -- what the round's updates give otherwise weighed
    lane INTEGER, round_num INTEGER,
    kind TEXT,  -- chosen, uniform, size, without
    excluded INTEGER,  -- the client that is left out; -1: none
    tested INTEGER,  -- on whose test set; -1: on the samples that the run reports on
    metric REAL, loss REAL, reason TEXT,  -- why there is no such aggregate
    PRIMARY KEY (lane, round_num, tested, kind, excluded)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS contributions (  -- on the server's reporting samples
    lane INTEGER, round_num INTEGER, client INTEGER,
    shapley REAL, error REAL,  -- its standard error; 0: all coalitions were evaluated
    PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS best (  -- samples that the best model so far classified correctly
    lane INTEGER, round_num INTEGER, metric REAL,
    num_samples INTEGER, bits BLOB,  -- one bit per sample, the first one first
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS sums (  -- over the participants of a large round; see `sums.py`
    lane INTEGER, round_num INTEGER,
    participants INTEGER, hostile_influence REAL,  -- also of those without rows
    clients_per_cell INTEGER, cells BLOB,  -- weights of clients with neighbouring numbers
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID""",
)
