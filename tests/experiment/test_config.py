from __future__ import annotations

import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.core.clock import Pace
from clientwise.core.weights.bounds import Bounds
from clientwise.core.weights.scores import Owa, Prioritized
from clientwise.data.datasets import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.config.methods import BOUNDS, MethodSettings
from clientwise.experiment.config.named import METHODS
from clientwise.experiment.load import load_experiment, load_method


def issues(config: dict[str, Any], *overrides: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_experiment(config, overrides)
    return caught.value.issues


@pytest.mark.parametrize(
    ("server_set", "name"),
    [
        ({}, "Recommended"),
        ({"source": "contributed", "fraction": 0.0}, "Recommended"),
        ({"source": "clients"}, "RecommendedJudged"),
        ({"fraction": 0.0}, "FedAvg"),
    ],
)
def test_who_names_no_method_gets_what_the_samples_allow(
    tiny: dict[str, Any], server_set: dict[str, Any], name: str
) -> None:
    least = {key: tiny[key] for key in ("name", "rounds", "data", "partition", "model")}
    assert (
        load_experiment({**least, "server_set": server_set}).methods
        == load_experiment({**tiny, "methods": [name]}).methods
    )


def test_every_error_at_once_with_key_and_suggestion(tiny: dict[str, Any]) -> None:
    tiny["traning"] = {}
    tiny["rounds"] = -1
    tiny["data"] = "digts"
    tiny["partition"] = {"name": "dirichlet", "client": 3, "concentration": 0}
    tiny["model"] = {"name": "mlp", "hidden": "wide"}
    tiny["training"] = {"batch_size": "ful", "learning_rate": -0.1, "epoch": 2}
    tiny["methods"][1] |= {
        "criteria": [
            "server_performance",
            "label_divers",
            {"name": "model_divergence", "per_layer": 1},
        ],
        "score": {"name": "prioritized", "priorty": []},
        "adapt_loss": {"name": "class_weights", "epsilon": 0.0},
    }
    found = dict(issues(tiny))
    assert found["traning"] == "unknown option; did you mean 'training'?"
    assert found["rounds = -1"] == "must be greater than 0."
    assert found["data"] == "unknown dataset 'digts'; did you mean 'digits'?"
    assert found["partition.client"] == "unknown option; did you mean 'clients'?"
    assert found["partition.concentration = 0"] == "must be greater than 0."
    assert found["model.hidden = 'wide'"] == "must be a list."
    assert found["training.batch_size = 'ful'"] == "must be an integer or 'full'."
    assert (
        found["training.learning_rate = -0.1"]
        == "must be greater than 0. Typical values are 0.01 to 0.1."
    )
    assert found["training.epoch"] == "unknown option; did you mean 'epochs'?"
    assert (
        found["methods[1].criteria[1]"]
        == "unknown criterion 'label_divers'; did you mean 'label_diversity'?"
    )
    assert found["methods[1].criteria[2].per_layer = 1"] == "must be true or false."
    assert found["methods[1].score.priorty"] == "unknown option; did you mean 'priority'?"
    assert found["methods[1].adapt_loss.epsilon = 0.0"] == "must be greater than 0."
    assert len(found) == 13


def test_a_value_of_another_type_is_told_what_it_must_be(tiny: dict[str, Any]) -> None:
    tiny["model"] = {"name": "mlp", "hidden": 32}
    tiny["training"] |= {"stop_early": 2, "loss": {"name": "focal", "class_weights": {"0": 1}}}
    tiny["stop_early"] = 2
    tiny["hostile"] = {"clients": 1, "attack": "sign_flip"}
    found = dict(issues(tiny))
    assert found["model.hidden = 32"] == "must be a list: [32]."
    assert found["training.loss.class_weights = {'0': 1}"] == "must be a list or 'balanced'."
    elsewhere = "unknown option; it is an option of the experiment, outside of all tables"
    assert found["training.stop_early"] == elsewhere
    assert found["stop_early = 2"] == "must be a table with the options rounds, min_delta."
    assert any("[[hostile]] instead of [hostile]" in rule for rule in found.values())


def test_a_misspelt_key_is_not_missing_as_well(tiny: dict[str, Any]) -> None:
    tiny["ronds"] = tiny.pop("rounds")
    assert issues(tiny) == [("ronds", "unknown option; did you mean 'rounds'?")]
    assert issues({}) == [("rounds", "is missing")]


def test_a_config_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "first try.toml").write_text('rounds = 1\nmodel = "mlp"\n', encoding="utf-8")
    assert load_experiment(tmp_path / "first try.toml").name == "first try"
    assert load_experiment({"rounds": 1}).name == "run"


@pytest.mark.parametrize("key", ["float", "int", "a[0]"])
def test_keys_that_are_named_like_types(tiny: dict[str, Any], key: str) -> None:
    tiny[key] = 1
    tiny["training"][key] = 1
    assert {place for place, _ in issues(tiny)} == {key, f"training.{key}"}


@pytest.mark.parametrize(
    "change",
    [
        "training.learning_rate=inf",
        "training.proximal=nan",
        "partition.concentration=inf",
        "seeds=[9223372036854775808]",
        "methods.0.server_step={name='adam', beta1=1.0}",
        "methods.0.score={name='owa', weights=[]}",
        "methods.0.server_step={name='yogi', tau=1e20}",
        "methods.0.rule={name='centred_clipping', steps=1000}",
        *(
            f"methods.0.evidence={{name='significance', {option}}}"
            for option in ("step=1e-9", "strength=1e9", "slack=1e9", "threshold=1e9")
        ),
        "methods.0.evidence={name='law', steps=1000000000}",
        "methods.0.evidence={name='shapley', orders=1000000000}",
        "device='tpu'",
    ],
)
def test_numbers_that_are_none(tiny: dict[str, Any], change: str) -> None:
    assert len(issues(tiny, change)) == 1


def test_a_plugin_with_types_for_the_type_checker_only(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    (tmp_path / "typed_plugin.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport clientwise as cw\n"
        "if TYPE_CHECKING:\n    from torch import Tensor\n"
        "@cw.criterion('typed', measured_by='client')\n"
        "def typed(clients: cw.ClientFacts, *, factor: float = 2.0) -> Tensor:\n"
        '    """Twice the size."""\n    return factor * clients.num_samples\n'
    )
    tiny |= {"plugins": ["typed_plugin"], "plugin_dir": str(tmp_path)}
    tiny["methods"] = [{"name": "typed", "criteria": [{"name": "typed", "factor": 3.0}]}]
    assert load_experiment(tiny).build_methods()[0].names == ("typed",)


def test_a_file_beside_the_config_is_not_imported_unasked(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise SystemExit('imported')")
    (tmp_path / "x.toml").write_text('name = "x"\nrounds = 1\nmodel = "mlp"\n')
    load_experiment(tmp_path / "x.toml")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ("seeds=[1, 1]", "seeds", "listed twice"),
        ("methods.1.name='FedAvg'", "methods", "two methods are called 'FedAvg'"),
        ("federation.clients_per_round=3", "federation", "either fraction or clients_per_round"),
        ("methods.1.score='mean'", "methods[1].adjust", 'use score = "prioritized"'),
        ("methods.0.adjust='best_order'", "methods[0].adjust", "needs 2 to 6 criteria"),
        (
            "methods.1.score={name='prioritized', priority=['dataset_size']}",
            "methods[1].score",
            "leaves out server_performance",
        ),
        ("methods.1.criteria=['trust', 'trust']", "methods[1].criteria", "trust is listed twice"),
        ("server_set.fraction=0.0", "methods[1]", "needs samples to weigh by"),
        ("server_set.report_fraction=1.0", "methods[1]", "needs samples to weigh by"),
        (
            "methods.0.training={optimizer='adam', momentum=0.5}",
            "methods[0].training.momentum",
            "adam has its own",
        ),
        (
            "methods.0.score={name='owa', weights=[0.5, 0.5]}",
            "methods[0].score",
            "2 values for 1 criteria",
        ),
        (
            "methods.0.score={name='choquet', capacity={dataset_size=0.5}}",
            "methods[0].score",
            "must be 1, got 0.5",
        ),
        (
            "methods.0={name='x', score={name='product', thresholds={dataset_size=1.0}}, normalise='sum'}",
            "methods[0].normalise",
            'use normalise = "none"',
        ),
    ],
)
def test_impossible_combinations(tiny: dict[str, Any], change: str, key: str, reason: str) -> None:
    found = issues(tiny, change)
    assert [place for place, message in found if reason in message] == [key]


def test_without_a_server_set_other_sources_serve(tiny: dict[str, Any]) -> None:
    for source in ("clients", "contributed"):
        load_experiment(tiny, ["server_set.report_fraction=1.0", f"server_set.source={source}"])


def test_set_changes_any_key(tiny: dict[str, Any]) -> None:
    changed = load_experiment(
        tiny,
        [
            "training.epochs=7",
            "device=cpu",
            "methods.0.score={name='owa', quantifier='any'}",
            "evaluation.target=0.75",
        ],
    )
    assert changed.training.epochs == 7
    assert changed.evaluation.target == 0.75
    assert changed.build_methods()[0].score == Owa(quantifier="any")
    assert tiny["training"]["epochs"] == 1  # the caller's dictionary is left alone
    for wrong in ("epochs", "=3", "methods.9.name='x'", "rounds.x=1"):
        with pytest.raises(ConfigError, match="--set"):
            load_experiment(tiny, [wrong])


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1-5", [1, 2, 3, 4, 5]), ("1-3, 9", [1, 2, 3, 9]), ("4", [4]), ("2,1", [2, 1])],
)
def test_seeds_may_be_a_text(tiny: dict[str, Any], text: str, seeds: list[int]) -> None:
    assert cw.load(tiny | {"seeds": text}).seeds == seeds
    assert cw.load(tiny, [f'seeds="{text}"']).seeds == seeds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5-1", "write 1,2,3 or 1-5"),
        ("", "write 1,2,3 or 1-5"),
        ("1-20000", "20,000 seeds; 10,000 at most"),
        ("99999999999999999999", "write"),
        ("1-3, 2", "2 is listed twice"),
    ],
)
def test_seeds_that_are_none_are_refused(tiny: dict[str, Any], text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"seeds.*{reason}"):
        cw.load(tiny | {"seeds": text})


def test_presets_change_the_size_of_an_experiment(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["presets"] = {
        "quick": {
            "rounds": 2,
            "partition": {"clients": 4},
            "data": {"name": "mnist5k"},
            "methods": ["all of it"],
        },
        "other": {
            "name": "mine",
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "mlp", "hidden": [5]},
        },
    }
    tiny["partition"]["concentration"] = 0.7
    assert load_experiment(tiny).name == "tiny"
    quick = load_experiment(tiny, ["rounds=5"], preset="quick")  # --set wins
    assert (quick.name, quick.rounds, quick.data.name) == ("tiny-quick", 5, "mnist5k")
    assert quick.partition.options == {"clients": 4, "concentration": 0.7}
    assert [method.name for method in quick.methods] == ["all of it"]
    other = load_experiment(tiny, preset="other")
    assert (other.name, other.partition.options, other.model.options) == (
        "mine",
        {"clients": 3},
        {"hidden": [5]},
    )
    assert "presets" not in quick.to_dict()

    for preset, change, reason in (
        ("quik", {}, "there is no preset 'quik'; did you mean 'quick'"),
        (
            "quick",
            {"methods": ["all of them"]},
            "there is no method 'all of them'; did you mean 'all of it'",
        ),
        ("quick", {"runds": 3}, "runds: unknown option; did you mean 'rounds'"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_experiment(tiny | {"presets": {"quick": change}}, preset=preset)
    with pytest.raises(ConfigError, match="there is no preset 'quick'; the config has no presets"):
        load_experiment(
            {key: value for key, value in tiny.items() if key != "presets"}, preset="quick"
        )
    with pytest.raises(ConfigError, match="must be tables"):
        load_experiment(tiny | {"presets": {"quick": 3}})


def test_a_method_may_train_differently(tiny: dict[str, Any]) -> None:
    fedprox, other = load_experiment(
        tiny, ["methods.0.training.proximal=0.1", "training.batch_size='full'"]
    ).build_methods()
    assert (
        fedprox.training.proximal,
        fedprox.training.learning_rate,
        fedprox.training.batch_size,
    ) == (0.1, 0.1, None)
    assert other.training.proximal == 0


def test_the_resolved_config_reads_back_the_same(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["hostile"] = [{"clients": [1, 2], "attack": {"name": "wrong_labels", "fraction": 0.5}}]
    tiny["methods"].append(
        {"name": "choquet", "score": {"name": "choquet", "capacity": {"dataset_size": 1.0}}}
    )
    experiment = load_experiment(tiny)
    (tmp_path / "resolved.toml").write_text(experiment.to_toml())
    assert load_experiment(tmp_path / "resolved.toml").to_dict() == experiment.to_dict()


def test_tables_are_read_as_the_dataclasses_that_state_their_keys(tiny: dict[str, Any]) -> None:
    table = {"cap": 0.5, "note": "why"}
    method = {"name": "mine", "bounds": table, "pace": {"deadline": 3.0}}
    experiment = load_experiment(tiny | {"methods": [method], "devices": {}})
    (found,) = experiment.methods
    assert found.bounds == Bounds(cap=0.5, note="why")
    assert found.pace == Pace(deadline=3.0)
    written = found.to_dict()["bounds"]
    assert BOUNDS.read(written) == found.bounds
    key = "methods[0].bounds"
    change = {"bounds": {"capp": 0.3, "floor": 2}}
    assert dict(issues(tiny | {"methods": [method | change]})) == {
        f"{key}.capp": "unknown option; did you mean 'cap'?",
        f"{key}.floor = 2": "must be less than 1.",
    }


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").touch()
    for path, reason in (
        (tmp_path / "absent.toml", "no such file"),
        (tmp_path, "is a folder, not a TOML file$"),
        (run, r"is a folder, .*the config of the run in it is .*run.config\.toml"),
        (broken, "not valid TOML"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            load_experiment(path)
        assert str(caught.value).startswith(str(path))


def test_a_byte_order_mark_is_left_out(tiny: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    experiment = load_experiment(tiny)
    path.write_text(experiment.to_toml(), encoding="utf-8-sig")
    assert load_experiment(path).to_dict() == experiment.to_dict()
    path.write_text(experiment.to_toml(), encoding="utf-16")
    with pytest.raises(ConfigError, match=r"tiny\.toml: is not UTF-8 text; save it as UTF-8$"):
        load_experiment(path)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mnist.toml"
    path.write_text(
        'name = "x"\nrounds = 1\ndata = "digits"\nmodel = "mlp"\npartition = {name = "iid", clients = 3}\n'
        '[[methods]]\nname = "m"\nscore = {name = "prioritized", priorty = []}\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert (
        str(caught.value)
        == f"{path}: methods[0].score.priorty: unknown option; did you mean 'priority'?"
    )


def test_plugins_lie_beside_the_file(tmp_path: Path, tiny: dict[str, Any]) -> None:
    (tmp_path / "my_test_criteria.py").write_text(
        "import clientwise as cw\n"
        "@cw.criterion('battery', measured_by='client', high=1.0)\n"
        "def battery(clients, *, level: float = 0.5):\n"
        "    '''A constant, for a test.'''\n"
        "    return clients.num_samples * 0 + level\n"
    )
    (tmp_path / "broken_test_plugin.py").write_text("1 / 0\n")
    config = tmp_path / "x.toml"
    text = 'name = "x"\nrounds = 1\ndata = "digits"\nmodel = "mlp"\npartition = {name = "iid", clients = 3}\n'
    config.write_text(
        text
        + 'plugins = ["my_test_criteria"]\n[[methods]]\nname = "m"\ncriteria = [{name = "battery", level = 0.7}]\n'
    )
    (method,) = cw.load(config).build_methods()
    assert method.names == ("battery",)
    config.write_text(text + 'plugins = ["no_such_plugin", "broken_test_plugin"]\n')
    with pytest.raises(ConfigError) as caught:
        cw.load(config)
    first, second = caught.value.issues
    assert "put no_such_plugin.py beside the config" in first[1]
    assert "ZeroDivisionError" in second[1]


def test_every_shipped_config_loads() -> None:
    shipped = [
        Path(str(files("clientwise") / "demo.toml")),
        *Path(__file__).parents[2].glob("examples/*.toml"),
    ]
    for path in shipped:
        experiment = load_experiment(path)
        assert tomllib.loads(experiment.to_toml()) == experiment.to_dict()
    demo = load_experiment(shipped[0]).build_methods()
    assert [method.name for method in demo] == [
        "FedAvg",
        "prioritized",
        "online",
        "AdaFedSquared",
        "combined",
        "Recommended",
    ]
    assert isinstance(demo[1].score, Prioritized)
    for path in (*shipped, Path(__file__).parents[2] / "docs" / "tutorial.md"):
        for method in methods_in(path):
            if method.name in METHODS:
                assert method == load_method(method.name, "here"), (
                    f"{path}: {method.name} is changed"
                )


def methods_in(path: Path) -> list[MethodSettings]:
    """The methods of a config, or of the one that a page builds step by step."""
    if path.suffix == ".toml":
        return load_experiment(path).methods
    blocks = path.read_text("utf-8").split("```toml\n")[1:]
    text = "\n".join(block.split("```")[0] for block in blocks)
    return load_experiment(tomllib.loads(text)).methods


def test_clients_without_test_sets_cannot_be_asked_to_test(tiny: dict[str, Any]) -> None:
    tiny["evaluation"] = {"test_fraction": 0}
    tiny["server_set"] = {"source": "clients"}
    found = dict(issues(tiny))
    assert "must be 0 where test_fraction is 0" in found["evaluation.clients_every"]
    assert "test_fraction must not be 0" in found["server_set.source"]
    assert "test_fraction must not be 0" in found["methods[1].adjust"]
    tiny["methods"] = [{"name": "FedAvg"}]
    tiny["evaluation"] |= {"clients_every": 0}
    tiny["server_set"] = {"report_fraction": 0.0}
    assert issues(tiny) == [
        ("server_set.report_fraction", "0 with test_fraction = 0: nothing would be measured")
    ]
    tiny["server_set"] = {}
    assert not load_experiment(tiny).clients_test


def test_the_official_test_split_is_a_server_set(tiny: dict[str, Any]) -> None:
    tiny["server_set"] = {"fraction": 0.0}
    assert "needs samples to weigh by" in dict(issues(tiny))["methods[1]"]
    tiny["evaluation"]["official_test"] = "server"
    assert load_experiment(tiny).server_holds_samples
    tiny["evaluation"] = {"official_test": "sever"}
    assert issues(tiny) == [
        ("evaluation.official_test = 'sever'", "must be 'pooled', 'server' or 'clients'.")
    ]


# What no config can mean ------------------------------------------------------------------------------------------

LEAST = """name = "least"
rounds = 1
data = "digits"
model = "linear"
partition = { name = "iid", clients = 3 }
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x = " + "[" * 5_000 + "]" * 5_000, "not valid TOML: brackets are nested too deep"),
        ("x = " + "[" * 40 + "]" * 40, "x: is nested more than 32 deep"),
        ("a." * 20_000 + "b = 1", "not valid TOML: a key of more than 32 parts"),
        ("[" + '"a" . ' * 20_000 + "b]", "not valid TOML: a key of more than 32 parts"),
        (
            "x = " + "9" * 5_000,
            "not valid TOML: an integer of too many digits; the largest integer",
        ),
        (
            f"training.epochs = {10**30}",
            "training.epochs: is too large; the largest integer of a config is 9,223",
        ),
        (f"seeds = [1, {2**63}]", r"seeds\[1\]: is too large"),
        ("#" * 2**21, "is larger than 1,048,576 bytes: not a config"),
        ('device = "cuda:99999999999"', "device = .cuda:9+.: must be .*, or .*for the second GPU"),
        ("training.epochs = 1000000000", "training.epochs = 1000000000: must be at most 10,000"),
        (
            "training.learning_rate = 1e308",
            r"learning_rate = 1e\+308: must be at most 1e\+30\. Typical values are",
        ),
        ("workers = 1000000", "workers = 1000000: must be at most 1,024 or .auto. or .ray."),
        (f"seeds = {list(range(20_000))}", "seeds = .*: must have at most 10,000 entries"),
        (
            f"methods = [{{name = '{'é' * 101}', like = 'FedAvg'}}]",
            r"methods\[0\].name = .*: must have 1 to 200 bytes",
        ),
        ('methods = [{name = "a\\nb", like = "FedAvg"}]', "and no control characters"),
    ],
)
def test_what_no_config_can_mean(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST + line, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason) as caught:
        load_experiment(path)
    assert all(len(message) <= 600 for _, message in caught.value.issues)


def test_dictionaries_have_the_same_bounds(tiny: dict[str, Any]) -> None:
    assert issues(tiny | {"rounds": 10**30}) == [
        ("rounds", "is too large; the largest integer of a config is 9,223,372,036,854,775,807")
    ]
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert issues(tiny | {"x": endless}) == [("x", "is nested more than 32 deep")]
    assert issues(tiny, "rounds=" + "[" * 3_000)[0][0].startswith("rounds = '[[[")
    assert issues(tiny, "a." * 5_000 + "b=1") == [("a", "is nested more than 32 deep")]


def test_of_many_mistakes_the_first_hundred_are_told(tiny: dict[str, Any]) -> None:
    found = issues(tiny | {f"x{number}": 1 for number in range(5_000)})
    assert len(found) == 101
    assert found[-1] == ("", "and 4,900 more like these")


def test_long_values_are_shortened_where_they_are_told_of(tiny: dict[str, Any]) -> None:
    ((key, message),) = issues(tiny | {"rounds": "9" * 100_000})
    assert key.startswith("rounds = '999")
    assert key.endswith("999'")
    assert (len(key), message) == (len("rounds = ") + 80, "must be an integer.")


def test_a_plugin_that_exits_does_not_end_the_command(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    ((key, message),) = issues(tiny | {"plugins": ["leaving"], "plugin_dir": str(tmp_path)})
    assert (key, message) == ("plugins[0]", "importing 'leaving' failed: SystemExit: 0")


def test_no_error_is_a_strangers(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"methods = \[\]: must not be empty"):
        load_experiment(tiny | {"methods": []})
    with pytest.raises(ValueError, match="unknown quantifier 'mosst'; did you mean 'most'"):
        cw.owa(quantifier="mosst")

    @cw.DATASETS.register("lost")
    def lost(data_dir: Path) -> cw.Samples:
        """Wants a folder."""
        return cw.Samples(data_dir / "images.npy")

    said = "data: lost: TypeError: .*no data folder is set: `data_dir` in the config"
    monkeypatch.delenv("CLIENTWISE_DATA", raising=False)
    with pytest.raises(DataError, match=said):
        cw.run(tiny | {"data": "lost"}, tmp_path / "run")
