import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import config as configuration
from protocol.config import ConfigError
from protocol.config.loading import apply_override


def written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_overrides_are_yaml_and_numbers_in_scientific_notation_are_numbers(tmp_path):
    path = written(tmp_path, "run: r\nlearner: {steps: 3}\n")
    config = configuration.load(
        path, ["learner.optimizer.learning_rate=1e-6", "tasks.domains=[retail]", "learner.steps=7"]
    )
    assert config.learner.optimizer.learning_rate == 1e-6
    assert config.tasks.domains == ("retail",)
    assert config.learner.steps == 7


@pytest.mark.parametrize(
    "text, message",
    [
        ("run: r\nlearner: {optimiser: {}}", "unknown key 'learner.optimiser'; did you mean 'optimizer'?"),
        ("run: r\nrolout: {}", "unknown key 'rolout'; did you mean 'rollout'?"),
        ("run: r\nlearner: {optimizer: {xyz: 1}}", "unknown key 'learner.optimizer.xyz'; known here: learning_rate"),
        ("run: r\nlearner: {steps: many}", "Expected `int`, got `str` - at `learner.steps`"),
        ("run: r\nrollout: {group_size: 1}", "rollout.group_size"),
        ("run: r\nrollout: {retries: {usr: {}}}", "unknown key 'rollout.retries.usr'; did you mean 'user'?"),
        (
            "run: r\nrollout: {retries: {user: {tmes: 3}}}",
            "unknown key 'rollout.retries.user.tmes'; did you mean 'times'?",
        ),
        ("run: r\nrollout: {outage: {errors: 20}}", "rollout.outage.errors (20) is above rollout.outage.among (12)"),
        ("run: r\nrollout: {outage: {longest: 60}}", "rollout.outage.probe (5), .max_probe (120) and .longest (60)"),
        ("run: r\nrollout: {outage: {probe: 200}}", "rollout.outage.probe (200), .max_probe (120)"),
        (
            "run: r\nrollout: {batch: 1801}",
            "learner.batch_timeout (3600) is below rollout.batch + rollout.outage.longest",
        ),
        ("run: r\nrollout: {retries: {actr: {times: 1}}}", "'rollout.retries.actr'; did you mean 'actor'?"),
        (
            "run: r\nrollout: {retries: {user: {backoff: 60}}}",
            "rollout.retries.user.backoff (60) is above its max_backoff (30)",
        ),
        ("run: r\nsampling: {forgetting: 1}", "sampling.forgetting"),
        ("run: r\nrollout: {wave_confidence: 1.0}", "rollout.wave_confidence"),
        ("run: My Run", "'My Run' is not a slug"),
        ("run: r\nrollout: {groups: 8, max_groups: 4}", "max_groups"),
        ("run: r\nrollout: {user: {kind: llm}}", "endpoint"),
        ("run: r\njudge: {model: m}", "judge.endpoint and judge.model must be set both, or neither"),
        ("run: r\njudge: {endpoint: 'judge:80', model: m}", "judge.endpoint: 'judge:80' is no URL"),
        ("run: r\njudge: {form: json}", "judge.form"),
        ("run: r\njudge: {price: {prompts: 1}}", "unknown key 'judge.price.prompts'; did you mean 'prompt'?"),
        (
            "run: r\nrollout: {sampling: {top_p: 0.9}}",
            "rollout.sampling.top_p (0.9) needs rollout.sampling.top_k: what each token was sampled from is recorded",
        ),
        ("run: r\nrollout: {sampling: {top_p: 0.9, top_k: 0}}", "Set top_k (to 20, say), or top_p to 1"),
        ("run: r\nrollout: {sampling: {top_k: 2000}}", "Expected `int` <= 1024 - at `rollout.sampling.top_k`"),
        ("run: r\nlearner: {keep_every: 12, checkpoint_every: 5}", "keep_every (12) is no multiple"),
        ("run: r\nlearner: {row_tokens: 64}", "row_tokens (64) is below rollout.limits.episode_tokens (900)"),
        (
            "run: r\nlearner: {lora: {targets: q_proj}}",
            "'q_proj' is no set of layers; known: attention_mlp, gdn_hybrid",
        ),
        ("run: r\nlearner: {lora: {}, full_push_every: 5}", "full_push_every (5) is for pushes of all parameters"),
        ("run: r\nlearner: {lora: {targets: []}}", "length >= 1 - at `learner.lora.targets`"),
        ("run: r\nlearner: {lora: {rnk: 8}}", "unknown key 'learner.lora.rnk'; did you mean 'rank'?"),
        ("- a", "is a mapping, not list"),
        ("run: [", "is not YAML"),
        ("{}", "missing required field `run`"),
        ("run: r\nseed: 1\nseed: 2", "found the key 'seed' twice"),
        ("run: r\nlearner: {steps: 3}\nrollout: {}\nlearner: {row_tokens: 2000}", "found the key 'learner' twice"),
        ("[" * 100_000, "is nested too deeply"),
        ("run: r\nseed: -1", "Expected `int` >= 0 - at `seed`"),
        ("run: r\nrollout: {limits: {episode: .inf}}", "rollout.limits.episode must be a finite number"),
        ("run: r\nevaluation: {token_price: .nan}", "evaluation.token_price must be a finite number"),
        (
            "run: r\nrollout: {user: {endpoint: 'localhost:8000/v1'}}",
            "rollout.user.endpoint: 'localhost:8000/v1' is no",
        ),
        ("run: r\nrollout: {user: {endpoint: 'http://[::1'}}", "rollout.user.endpoint: 'http://[::1' is no URL"),
        ("run: r\nlearner: {full_push_every: 0}", "learner.full_push_every"),
        (
            "run: r\nlearner: {full_push_every: 8, weights_dtype: float32}",
            "learner.full_push_every (8) is for learner.weights_dtype bfloat16",
        ),
        ("run: r\nactor: {urls: ['http://a:1', 'http://b:99999']}", "actor.urls: 'http://b:99999' is no URL"),
    ],
)
def test_bad_input_names_the_key_and_the_way_out(tmp_path, text, message):
    with pytest.raises(ConfigError) as error:
        configuration.load(written(tmp_path, text))
    assert message in str(error.value)


def test_scientific_notation_is_a_number_in_a_file_too_and_a_quoted_number_is_text(tmp_path):
    path = written(tmp_path, "run: r\nlearner: {optimizer: {learning_rate: 1e-6}}\nfolder: '1e3'")
    config = configuration.load(path, ['run="5"'])
    assert (config.learner.optimizer.learning_rate, config.folder, config.run) == (1e-6, "1e3", "5")
    assert configuration.load(written(tmp_path, configuration.dump(config))) == config


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"run: \xff")
    with pytest.raises(ConfigError, match="is not YAML: 'utf-8' codec"):
        configuration.load(tmp_path / "run.yaml")


@pytest.mark.parametrize("override", ["seed=[1", "seed=*a", "learner..steps=1", ".seed=1"])
def test_malformed_overrides_are_refused(tmp_path, override):
    with pytest.raises(ConfigError, match="override"):
        configuration.load(written(tmp_path, "run: r"), [override])


def test_a_missing_file_and_a_malformed_override_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read configuration"):
        configuration.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        configuration.load(written(tmp_path, "run: r"), ["steps"])
    with pytest.raises(ConfigError, match="run is a value, not a section"):
        configuration.load(written(tmp_path, "run: r"), ["run.x=1"])


@given(st.integers(1, 10**6), st.sampled_from(["seed", "learner.steps"]))
def test_the_fingerprint_depends_on_every_value_and_on_nothing_else(value, key):
    def of(value):
        tree = {"run": "r", "learner": {}}
        apply_override(tree, f"{key}={value}")
        return configuration.resolve(tree).fingerprint()

    assert of(value) == of(value) != of(value + 1)


def test_the_dump_loads_to_the_same_configuration(tmp_path):
    config = configuration.load(written(tmp_path, "run: r\nseed: 4"), ["rollout.groups=3"])
    again = configuration.load(written(tmp_path, configuration.dump(config)))
    assert again == config


@pytest.mark.parametrize(
    ("staleness", "given", "resolved"), [(0, None, None), (0, 5.0, 5.0), (1, None, 2.0), (1, 5.0, 5.0)]
)
def test_stale_tokens_are_always_weighed(staleness, given, resolved):
    tree = {"run": "r", "rollout": {"max_staleness": staleness}, "learner": {"loss": {"truncated_is": given}}}
    assert configuration.resolve(tree).learner.loss.truncated_is == resolved
