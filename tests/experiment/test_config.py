"""The config: what it takes and refuses, methods by name, presets, and its JSON schema."""

from __future__ import annotations

import json
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import clientwise as cw
from clientwise.core.clock import Pace
from clientwise.core.weights.scores import Owa, Prioritized
from clientwise.core.weights.weighting import Bounds
from clientwise.data.datasets import DataError
from clientwise.errors import ConfigError
from clientwise.experiment.config.methods import BOUNDS, MethodSettings
from clientwise.experiment.config_file import METHODS, method_toml, write_out
from clientwise.experiment.load import load_experiment, load_method
from clientwise.experiment.reference import config_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
DEMO = Path(str(files("clientwise") / "demo.toml"))
LEAST = """name = "least"
rounds = 1
data = "digits"
model = "linear"
partition = { name = "iid", clients = 3 }
"""


def issues(config: dict[str, Any], *overrides: str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_experiment(config, overrides)
    return caught.value.issues


def method_of(config: dict[str, Any], *overrides: str) -> MethodSettings:
    """The one method of an experiment."""
    (method,) = load_experiment(config, overrides).methods
    return method


# What is refused ----------------------------------------------------------------------------------------------------


def test_every_error_at_once_with_key_and_suggestion(tiny: dict[str, Any]) -> None:
    tiny |= {
        "traning": {},
        "rounds": -1,
        "data": "digts",
        "partition": {"name": "dirichlet", "client": 3, "concentration": 0},
        "model": {"name": "mlp", "hidden": "wide"},
        "training": {
            "batch_size": "ful",
            "learning_rate": -0.1,
            "epoch": 2,
            "keep": "best",
            "loss": {"name": "focal", "class_weights": {"0": 1}},
        },
        "checkpoint_seconds": -1,
        "hostile": {"clients": 1, "attack": "sign_flip"},
    }
    tiny["methods"][1] |= {
        "criteria": [
            "server_performance",
            "label_divers",
            {"name": "model_divergence", "per_layer": 1},
            {"name": "server_performance", "metric": "acuracy"},
        ],
        "score": {"name": "prioritized", "priorty": []},
        "adapt_loss": {"name": "class_weights", "epsilon": 0.0},
        "server_step": {"name": "best_of", "steps": [{"name": "momentum", "momentm": 0.8}, "adm"]},
        "bounds": {"capp": 0.3, "floor": 2},
    }
    found = dict(issues(tiny))
    hostile = found.pop("hostile = {'clients': 1, 'attack': 'sign_flip'}")
    assert hostile == "must be a list of tables: write [[hostile]] instead of [hostile]."
    assert found == {
        "traning": "unknown option; did you mean 'training'?",
        "rounds = -1": "must be greater than 0.",
        "data": "unknown dataset 'digts'; did you mean 'digits'?",
        "partition.client": "unknown option; did you mean 'clients'?",
        "partition.concentration = 0": "must be greater than 0.",
        "model.hidden = 'wide'": "must be a list.",
        "training.batch_size = 'ful'": "must be an integer or 'full'.",
        "training.learning_rate = -0.1": "must be greater than 0. Typical values are 0.01 to 0.1.",
        "training.epoch": "unknown option; did you mean 'epochs'?",
        "training.keep": "unknown option; it is an option of the experiment, outside of all tables",
        "training.loss.class_weights = {'0': 1}": "must be a list or 'balanced'.",
        "checkpoint_seconds = -1": "must be greater than or equal to 0.",
        "methods[1].criteria[1]": "unknown criterion 'label_divers'; did you mean 'label_diversity'?",
        "methods[1].criteria[2].per_layer = 1": "must be true or false.",
        "methods[1].criteria[3].metric": "unknown metric 'acuracy'; did you mean 'accuracy'?",
        "methods[1].score.priorty": "unknown option; did you mean 'priority'?",
        "methods[1].adapt_loss.epsilon = 0.0": "must be greater than 0.",
        "methods[1].server_step.steps[0].momentm": "unknown option; did you mean 'momentum'?",
        "methods[1].server_step.steps[1]": "unknown server step 'adm'; did you mean 'adam'?",
        "methods[1].bounds.capp": "unknown option; did you mean 'cap'?",
        "methods[1].bounds.floor = 2": "must be less than 1.",
    }


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ("seeds=[1, 1]", "seeds", "listed twice"),
        ("seeds='5-1'", "seeds = '5-1'", "write 1,2,3 or 1-5."),
        ("seeds='1-20000'", "seeds = '1-20000'", "20,000 seeds; 10,000 at most."),
        ("seeds=[9223372036854775808]", "seeds[0]", "must be less than"),
        ("device='tpu'", "device = 'tpu'", "must be "),
        ("model={name='mlp', hidden=32}", "model.hidden = 32", "must be a list: [32]."),
        ("training.learning_rate=inf", "training.learning_rate = inf", "must be a finite number."),
        (
            "partition.concentration=inf",
            "partition.concentration = inf",
            "must be a finite number.",
        ),
        ("evaluation.official_test='x'", "evaluation.official_test = 'x'", "'server' or 'clients'"),
        ("evaluation.metric='acuracy'", "evaluation.metric", "did you mean 'accuracy'?"),
        ("methods=[]", "methods = []", "must have at least 1 item"),
        ("methods.1.name='FedAvg'", "methods", "two methods are called 'FedAvg'"),
        ("methods.0.name=3", "methods[0].name = 3", "must be a string."),
        ("federation.clients_per_round=3", "federation", "either fraction or clients_per_round"),
        ("methods.1.score='mean'", "methods[1].adjust", 'use score = "prioritized"'),
        ("methods.0.adjust='best_order'", "methods[0].adjust", "needs 2 to 6 criteria"),
        ("methods.1.criteria=['trust', 'trust']", "methods[1].criteria", "trust is listed twice"),
        ("server_set.fraction=0.0", "methods[1]", "needs samples to weigh by"),
        ("methods.0.rule={name='centred_clipping', steps=1000}", "", "must be less than or equal"),
        ("methods.0.server_step={name='adam', beta1=1.0}", "", "must be less than 1."),
        ("methods.0.evidence={name='law', steps=1000000000}", "", "must be less than or equal"),
        ("methods.0.score={name='owa', weights=[0.5, 0.5]}", "methods[0].score", "2 values for 1"),
        ("methods.0.before=['nova']", "methods[0].before[0]", "reads the criterion 'local_steps'"),
    ],
)
def test_what_cannot_be(tiny: dict[str, Any], change: str, key: str, reason: str) -> None:
    found = issues(tiny, change)
    assert [place for place, message in found if reason in message and place.startswith(key)]
    assert len(found) <= 2


def test_a_misspelt_key_is_not_missing_as_well(tiny: dict[str, Any]) -> None:
    tiny["ronds"] = tiny.pop("rounds")
    assert issues(tiny) == [("ronds", "unknown option; did you mean 'rounds'?")]
    assert issues({}) == [("rounds", "is missing")]


@pytest.mark.parametrize("key", ["float", "int", "a[0]"])
def test_keys_that_are_named_like_types(tiny: dict[str, Any], key: str) -> None:
    tiny[key] = 1
    tiny["training"][key] = 1
    assert {place for place, _ in issues(tiny)} == {key, f"training.{key}"}


def test_clients_without_test_sets_cannot_be_asked_to_test(tiny: dict[str, Any]) -> None:
    tiny |= {"evaluation": {"test_fraction": 0}, "server_set": {"source": "clients"}}
    found = dict(issues(tiny))
    assert "must be 0 where test_fraction is 0" in found["evaluation.clients_every"]
    assert "test_fraction must not be 0" in found["server_set.source"]
    assert "test_fraction must not be 0" in found["methods[1].adjust"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x = " + "[" * 5_000 + "]" * 5_000, "not valid TOML: brackets are nested too deep"),
        ("a." * 20_000 + "b = 1", "not valid TOML: a key of more than 32 parts"),
        ("x = " + "9" * 5_000, "an integer of too many digits; the largest integer"),
        (f"seeds = [1, {2**63}]", r"seeds\[1\] = .*: must be less than"),
        ("#" * 2**21, "is larger than 1,048,576 bytes: not a config"),
        (
            "training.epochs = 1000000000",
            "training.epochs = 1000000000: must be less than or equal to 10000",
        ),
        (
            "workers = 1000000",
            "workers = 1000000: must be less than or equal to 1024 or .auto. or .ray.",
        ),
        (f"seeds = {list(range(20_000))}", "seeds = .*: must have at most 10000 items"),
        (
            f"[[hostile]]\nclients = 1\nattack = {[1] * 101}",
            r"hostile\[0\].attack = .*: must have at most 100 attacks",
        ),
        (
            f"methods = [{{name = '{'é' * 101}', like = 'FedAvg'}}]",
            r"methods\[0\].name = .*: must have 1 to 200 bytes",
        ),
        ('methods = [{name = "a\\nb", like = "FedAvg"}]', "and no control characters"),
        ("= 3", "not valid TOML"),
        (
            'methods = ["FedAvg"]\n[[methods]]\nname = "FedYogi"',
            r"methods is defined twice, as `methods = ...` and as `\[\[methods\]\]`: join them in one",
        ),
    ],
)
def test_what_no_file_can_mean(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(LEAST + line, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason) as caught:
        load_experiment(path)
    assert str(caught.value).startswith(str(path))
    assert all(len(message) <= 600 for _, message in caught.value.issues)


def test_dictionaries_have_the_same_bounds(tiny: dict[str, Any]) -> None:
    assert issues(tiny, "rounds=" + "[" * 3_000)[0][0].startswith("rounds = '[[[")
    found = issues(tiny | {f"x{number}": 1 for number in range(5_000)})
    assert (len(found), found[-1]) == (101, ("", "and 4,900 more like these"))
    ((key, message),) = issues(tiny | {"rounds": "9" * 100_000})
    assert (len(key), message) == (len("rounds = ") + 80, "must be an integer.")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").touch()
    (tmp_path / "wide.toml").write_text(LEAST, encoding="utf-16")
    for path, reason in (
        (tmp_path / "absent.toml", "no such file"),
        (tmp_path, "is a folder, not a TOML file$"),
        (run, r"is a folder, .*the config of the run in it is .*run.config\.toml"),
        (tmp_path / "wide.toml", "is not UTF-8 text; save it as UTF-8$"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_experiment(path)
    (tmp_path / "marked try.toml").write_text(LEAST[15:], encoding="utf-8-sig")
    assert load_experiment(tmp_path / "marked try.toml").name == "marked try"


def test_an_error_of_an_own_dataset_is_one_line(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @cw.parts.DATASETS.register("lost")
    def lost(data_dir: Path) -> cw.Samples:
        """Wants a folder."""
        return cw.Samples(data_dir / "images.npy")

    said = "data: lost: TypeError: .*no data folder is set: `data_dir` in the config"
    monkeypatch.delenv("CLIENTWISE_DATA", raising=False)
    with pytest.raises(DataError, match=said):
        cw.run(tiny | {"data": "lost"}, tmp_path / "run")


# What is read -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server_set", "name"),
    [
        ({}, "Recommended"),
        ({"source": "contributed", "fraction": 0.0}, "Recommended"),
        ({"source": "clients"}, "RecommendedJudged"),
        ({"fraction": 0.0}, "FedAvg"),
    ],
)
def test_the_default_method_is_what_the_samples_allow(
    tiny: dict[str, Any], server_set: dict[str, Any], name: str
) -> None:
    del tiny["methods"]
    default = load_experiment(tiny | {"server_set": server_set}).methods
    assert default == load_experiment(tiny | {"methods": [name]}).methods


def test_set_changes_any_key(tiny: dict[str, Any]) -> None:
    score = "methods.0.score={name='owa', quantifier='any'}"
    changed = load_experiment(tiny, ["training.epochs=7", "device=cpu", score, 'seeds="1-3, 9"'])
    assert (changed.training.epochs, changed.seeds) == (7, [1, 2, 3, 9])
    assert changed.build_methods()[0].score == Owa(quantifier="any")
    assert tiny["training"]["epochs"] == 1  # the caller's dictionary is left alone
    for wrong in ("epochs", "=3", "methods.9.name='x'", "rounds.x=1"):
        with pytest.raises(ConfigError, match="--set"):
            load_experiment(tiny, [wrong])


def test_presets_change_the_size_of_an_experiment(tiny: dict[str, Any]) -> None:
    tiny["partition"]["concentration"] = 0.7
    tiny["presets"] = {
        "quick": {
            "rounds": 2,
            "partition": {"clients": 4},
            "data": {"name": "mnist5k"},
            "methods": ["all of it"],
        },
        "other": {"name": "mine", "partition": {"name": "iid", "clients": 3}},
    }
    quick = load_experiment(tiny, ["rounds=5"], preset="quick")  # --set wins
    assert (quick.name, quick.rounds, quick.data.name) == ("tiny-quick", 5, "mnist5k")
    assert quick.partition.options == {"clients": 4, "concentration": 0.7}
    assert [method.name for method in quick.methods] == ["all of it"]
    assert "presets" not in quick.to_dict()
    other = load_experiment(tiny, preset="other")
    assert (other.name, other.partition.options) == ("mine", {"clients": 3})


@pytest.mark.parametrize(
    ("presets", "reason"),
    [
        ({"quik": {}}, "there is no preset 'quick'; did you mean 'quik'"),
        ({}, "there is no preset 'quick'; the config has no presets"),
        ({"quick": 3}, "must be tables"),
        ({"quick": {"runds": 3}}, "runds: unknown option; did you mean 'rounds'"),
        ({"quick": {"methods": ["all of them"]}}, "no method 'all of them'; did you mean 'all of"),
    ],
)
def test_presets_that_are_none(tiny: dict[str, Any], presets: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_experiment(tiny | {"presets": presets}, preset="quick")


def test_the_resolved_config_reads_back_the_same(tiny: dict[str, Any], tmp_path: Path) -> None:
    tiny["hostile"] = [{"clients": [1, 2], "attack": {"name": "wrong_labels", "fraction": 0.5}}]
    score = {"name": "choquet", "capacity": {"dataset_size": 1.0}}
    table = {"name": "mine", "score": score, "bounds": {"cap": 0.5}, "pace": {"deadline": 3.0}}
    experiment = load_experiment(tiny | {"methods": [table], "devices": {}})
    (method,) = experiment.methods
    assert (method.bounds, method.pace) == (Bounds(cap=0.5), Pace(deadline=3.0))
    assert BOUNDS.read(method.to_dict()["bounds"]) == method.bounds
    (tmp_path / "resolved.toml").write_text(experiment.to_toml())
    assert load_experiment(tmp_path / "resolved.toml").to_dict() == experiment.to_dict()


def test_plugins_lie_beside_the_file(tmp_path: Path) -> None:
    """They may have types that only the type checker imports; one that fails or exits is an issue."""
    (tmp_path / "my_test_criteria.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport clientwise as cw\n"
        "if TYPE_CHECKING:\n    from torch import Tensor\n"
        "@cw.criterion('battery', measured_by='client', high=1.0)\n"
        "def battery(clients: cw.parts.ClientFacts, *, level: float = 0.5) -> Tensor:\n"
        "    '''A constant, for a test.'''\n    return clients.num_samples * 0 + level\n"
    )
    (tmp_path / "broken_test_plugin.py").write_text("1 / 0\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "sklearn.py").write_text("raise SystemExit('imported')")
    config = tmp_path / "x.toml"
    config.write_text(LEAST)
    load_experiment(config)
    assert str(tmp_path) not in sys.path  # a file beside the config is not imported unasked
    method = '[[methods]]\nname = "m"\ncriteria = [{ name = "battery", level = 0.7 }]\n'
    config.write_text(f'{LEAST}plugins = ["my_test_criteria"]\n{method}')
    assert method_of(config).build(load_experiment(config).training).names == ("battery",)  # type: ignore[arg-type]
    config.write_text(f'{LEAST}plugins = ["no_such_plugin", "broken_test_plugin", "leaving"]\n')
    with pytest.raises(ConfigError) as caught:
        load_experiment(config)
    absent, broken, leaving = caught.value.issues
    assert "put no_such_plugin.py beside the config" in absent[1]
    assert "ZeroDivisionError" in broken[1]
    assert leaving == ("plugins[2]", "importing 'leaving' failed: SystemExit: 0")


def test_every_shipped_config_loads() -> None:
    shipped = [DEMO, *ROOT.glob("examples/*.toml")]
    for path in shipped:
        experiment = load_experiment(path)
        assert tomllib.loads(experiment.to_toml()) == experiment.to_dict()
    demo = load_experiment(DEMO).build_methods()
    assert [demo[0].name, demo[-1].name] == ["FedAvg", "Recommended"]
    assert isinstance(demo[1].score, Prioritized)
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8").split("```toml\n")[1:]
    blocks = "\n".join(block.split("```")[0] for block in tutorial)
    configs: list[Any] = [*shipped, tomllib.loads(blocks)]
    for config in configs:
        for method in load_experiment(config).methods:
            if method.name in METHODS:
                assert method == load_method(method.name, "here"), f"{method.name} is changed"


# Methods by name ----------------------------------------------------------------------------------------------------


def test_a_name_is_what_its_toml_says(tiny: dict[str, Any]) -> None:
    tiny["devices"] = {}
    by_name = load_experiment(tiny | {"methods": list(METHODS)})
    written = [method for name in METHODS for method in tomllib.loads(method_toml(name))["methods"]]
    assert by_name == load_experiment(tiny | {"methods": written})
    assert by_name == load_experiment(tiny | {"methods": [{"name": name} for name in METHODS]})
    again = load_experiment(by_name.to_dict())
    assert by_name.to_dict() == again.to_dict(), "a run folder needs no names"


def test_a_known_name_with_an_option_is_that_method_in_any_case(tiny: dict[str, Any]) -> None:
    tiny["devices"] = {}
    changed = {"training": {"learning_rate": 0.02}}
    for name in METHODS:
        wanted = method_of(tiny | {"methods": [{"like": name, **changed}]})
        for spelling in (name, name.lower()):
            method = method_of(tiny | {"methods": [{"name": spelling, **changed}]})
            assert method == wanted.model_copy(update={"name": spelling})
    assert method_of(tiny | {"methods": ["fedyogi"]}).name == "FedYogi"


def test_like_takes_what_is_not_said_otherwise(tiny: dict[str, Any]) -> None:
    own = {"server_step": {"learning_rate": 0.5}, "training": {"epochs": 3}}
    method = method_of(tiny | {"methods": [{"name": "mine", "like": "FedYogi", **own}]})
    assert (method.name, method.server_step.name, method.training.epochs) == ("mine", "yogi", 3)
    assert method.server_step.options["learning_rate"] == 0.5
    other = method_of(tiny | {"methods": [{"like": "FedYogi", "server_step": "sgd"}]})
    assert (other.name, other.server_step.name) == ("FedYogi", "sgd")
    fedprox = tiny | {"methods": ["FedProx"]}
    assert method_of(fedprox, "methods.0.training.proximal=0.5").training.proximal == 0.5
    assert method_of(fedprox).training.proximal == 0.1  # what the name stands for stays as it is
    stated = {"name": "Recommended", "like": "FedAvg", "training": {"epochs": 2}}
    before = load_experiment(tiny | {"methods": [stated]})  # a resolved config means what it states
    assert load_experiment(before.to_dict()).to_dict() == before.to_dict()
    once = write_out([{"name": "DS", "like": "FedAvg"}])
    assert write_out(once) == once


@pytest.mark.parametrize(
    ("method", "key", "reason"),
    [
        ("FedYogy", "", "there is no method 'FedYogy'; did you mean 'FedYogi'?"),
        ({"name": "mine", "like": 3}, ".like", "there is no method 3"),
        ({"name": "FedProxx"}, ".name", "did you mean 'FedProx'?"),  # it would be FedAvg
        ({"name": "P1"}, ".name", "known: "),
        ({"like": "Pooled", "rule": "median"}, ".control", "rule would have no effect"),
    ],
)
def test_methods_that_are_none(tiny: dict[str, Any], method: Any, key: str, reason: str) -> None:
    found = issues(tiny | {"methods": ["FedAvg", method]})
    assert [place for place, message in found if reason in message] == [f"methods[1]{key}"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["all of it,FedAvg"], ["FedAvg", "all of it"]),  # in the config's order: a baseline first
        (["FedYogi", "FedAvg"], ["FedAvg", "FedYogi"]),  # one that the config has not
        (["a, b"], ["a, b"]),
        ("FedAvg", ["FedAvg"]),
    ],
)
def test_methods_are_picked_by_name(tiny: dict[str, Any], given: Any, names: list[str]) -> None:
    tiny["methods"].append({"name": "a, b", "criteria": ["label_diversity"]})
    tiny["presets"] = {"quick": {"methods": given}}
    picked = [
        load_experiment(tiny, replaced={"methods": given}),
        load_experiment(tiny, [f"methods={given}"]),
        load_experiment(tiny, preset="quick"),
    ]
    assert [[method.name for method in one.methods] for one in picked] == [names] * 3
    with pytest.raises(ConfigError, match="methods: there is no method 'FedAvgg'; did you mean"):
        load_experiment(tiny, ["methods=['FedAvgg']"])


def test_focus_takes_the_weight_of_wrong_labels(tiny: dict[str, Any], tmp_path: Path) -> None:
    harder = {"name": "harder", "like": "FOCUS", "evidence": {"alpha": 5.0}}
    config = tiny | {"rounds": 6, "federation": {}, "methods": ["FedAvg", "FOCUS", harder]}
    config["partition"] = {"name": "iid", "clients": 6}
    config["hostile"] = [{"attack": "wrong_labels", "clients": [5]}]
    weights = cw.run(config, tmp_path / "run").weights
    assert weights.loc[("FedAvg", 5), 6] == pytest.approx(1 / 6, rel=0.1)
    assert weights.loc[("FOCUS", 5), 6] < 0.14
    assert weights.loc[("harder", 5), 6] < 0.03
    assert weights.loc["harder"][6].drop(5).min() > 0.18


# For editors --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(json.dumps(config_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_takes_every_config_we_ship(validator: Any) -> None:
    shipped = [*sorted((ROOT / "lab").glob("*/*.toml")), DEMO]
    assert len(shipped) > 10
    for path in shipped:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        if "plugins" in table:
            continue  # `list --schema --config` has their parts
        errors = list(validator.iter_errors(table))
        assert not errors, f"{path.name}: {errors[0].json_path}: {errors[0].message[:300]}"


@pytest.mark.parametrize(
    "text",
    [
        "rouns = 3",
        "rounds = 0",
        "seeds = 5",
        "training.learnin_rate = 0.1",
        "training.learning_rate = -0.1",
        'data = "mnits"',
        'model = { name = "mlp", hidden = 3 }',
        'methods = ["FedAvgg"]',
        'methods = [{ name = "x", score = "prioritised" }]',
        'methods = [{ name = "x", criteria = [{ name = "server_performance", metric = "acuracy" }] }]',
        'hostile = [{ clients = 2, attack = "wrong_label" }]',
    ],
)
def test_the_schema_marks_what_is_wrong(text: str, validator: Any, tiny: dict[str, Any]) -> None:
    assert validator.is_valid(tiny | {"seeds": "1-5, 9"})
    assert not validator.is_valid(tiny | tomllib.loads(text))
