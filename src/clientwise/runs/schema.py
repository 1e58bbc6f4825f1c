"""The tables of run.sqlite: what happened in a run, per round and per client."""

from __future__ import annotations

DATABASE = "run.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS lanes (   -- one method with one seed
    lane INTEGER PRIMARY KEY, method TEXT, seed INTEGER, finished INTEGER DEFAULT 0, UNIQUE (method, seed));

CREATE TABLE IF NOT EXISTS clients ( -- who there is, under a seed
    seed INTEGER, client INTEGER, name TEXT, num_train INTEGER, num_test INTEGER, hostile TEXT,
    PRIMARY KEY (seed, client)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS rounds (
    lane INTEGER, round_num INTEGER,
    metric REAL, macro_f1 REAL, loss REAL,              -- on the server's reporting part; the problem's metric
    local_mean REAL, local_p10 REAL, local_p90 REAL,    -- over the honest clients' own test sets
    reached TEXT,    -- what 10, 20 ... 90%, and 75%, of the honest clients reach on theirs
    priority TEXT, candidates TEXT, testing_rounds INTEGER,
    class_weights TEXT, loss_shape REAL, per_class_f1 TEXT,
    no_effect TEXT, notes TEXT, seconds REAL, models_moved INTEGER, evaluations INTEGER,
    attack_success REAL, -- of simulated backdoors
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS clock (   -- of runs in which clients take time; older databases have no such table
    lane INTEGER, round_num INTEGER, ended REAL, -- seconds since the run began
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS participants ( -- everyone whose update arrived, accepted or refused
    lane INTEGER, round_num INTEGER, client INTEGER, refusal TEXT, -- NULL: accepted
    score REAL, prior REAL, z REAL, posterior REAL, weight REAL, influence REAL, -- NULL where nothing moved it
    training_loss REAL, seconds REAL);
-- None by client: rows would go all over it, and writing a round of a thousand would take twice as long.
CREATE INDEX IF NOT EXISTS participants_by_round ON participants (lane, round_num, client, weight);
CREATE INDEX IF NOT EXISTS refused_participants ON participants (lane) WHERE refusal IS NOT NULL;

CREATE TABLE IF NOT EXISTS criteria (
    lane INTEGER, round_num INTEGER, client INTEGER, criterion TEXT, raw REAL, normalised REAL,
    PRIMARY KEY (lane, round_num, client, criterion)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS local (   -- every client's own test set, in the rounds in which it was evaluated
    lane INTEGER, round_num INTEGER, client INTEGER, metric REAL, loss REAL,
    PRIMARY KEY (lane, round_num, client)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS best (    -- which samples the model of the best round so far classified rightly
    lane INTEGER, round_num INTEGER, metric REAL, num_samples INTEGER, bits BLOB, -- one bit per sample, the first first
    PRIMARY KEY (lane, round_num)) WITHOUT ROWID;
"""

SCHEMA_VERSION = 4  # of the tables above and of the checkpoints: a run folder of another version cannot be added to
