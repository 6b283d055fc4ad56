"""The ``VKPAR_*`` variables: parsed once, refused where they make no sense, overridable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from helpers.process.children import child_environment, run_child

from vkpar import InvalidUsageError, env

Setter = Callable[..., None]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setter]:
    """Give a function that sets variables, and only those, before the settings are read again."""
    for entry in dataclasses.fields(env.Environment):
        monkeypatch.delenv(entry.metadata["variable"], raising=False)
    monkeypatch.setattr(env, "_current", None)

    def assign(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return assign  # monkeypatch puts the old settings back


def test_defaults(fresh: Setter) -> None:
    assert env.get() == env.Environment()
    assert env.get().link == "auto"
    assert env.get().validation is False


def test_values_are_read_once(fresh: Setter) -> None:
    fresh(VKPAR_DEVICES="llvmpipe*2")
    assert env.get().devices == "llvmpipe*2"
    fresh(VKPAR_DEVICES="gpu")
    assert env.get().devices == "llvmpipe*2"


@pytest.mark.parametrize("entry", dataclasses.fields(env.Environment), ids=lambda entry: entry.name)
def test_an_empty_variable_is_unset(fresh: Setter, entry: dataclasses.Field[object]) -> None:
    fresh(**{entry.metadata["variable"]: ""})
    assert env.get() == env.Environment()


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
def test_true_words(fresh: Setter, text: str) -> None:
    fresh(VKPAR_VALIDATION=text)
    assert env.get().validation is True


@pytest.mark.parametrize("text", ["0", "false", "NO", "off"])
def test_false_words(fresh: Setter, text: str) -> None:
    fresh(VKPAR_VALIDATION=text)
    assert env.get().validation is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("VKPAR_VALIDATION", "maybe"),
        ("VKPAR_VALIDATION", "2"),
        ("VKPAR_LINK", "telepathic"),
        ("VKPAR_WIRE", "f8"),
        ("VKPAR_TRANSPORT", "pigeon"),
        ("VKPAR_STAGING_BYTES", "1.5"),
        ("VKPAR_STAGING_BYTES", "-1"),
        ("VKPAR_STAGING_BYTES", "many"),
        ("VKPAR_RING_BYTES", "0x10"),
        ("VKPAR_MAX_MEMORY", "2G"),
        ("VKPAR_RING_BYTES", "²"),
        ("VKPAR_MAX_BUFFER", "4095"),
        ("VKPAR_MAX_BINDING", "1"),
        ("VKPAR_DEBUG", "bogus"),
        ("VKPAR_DEBUG", "slots,bogus"),
        ("VKPAR_ALGORITHM", "butterfly"),
    ],
)
def test_bad_values_name_the_variable(fresh: Setter, variable: str, text: str) -> None:
    fresh(**{variable: text})
    with pytest.raises(InvalidUsageError, match=variable):
        env.get()


def test_a_bad_value_can_be_corrected(fresh: Setter) -> None:
    fresh(VKPAR_RING="square")
    with pytest.raises(InvalidUsageError, match="auto, host"):
        env.get()
    fresh(VKPAR_RING="host")
    assert env.get().ring == "host"


@pytest.mark.parametrize(
    ("variable", "value"), [("VKPAR_STAGING_BYTES", 1 << 20), ("VKPAR_RING_BYTES", 4096), ("VKPAR_MAX_MEMORY", 1 << 40)]
)
def test_numbers(fresh: Setter, variable: str, value: int) -> None:
    fresh(**{variable: str(value)})
    by_variable = {row["variable"]: row["value"] for row in env.describe()}
    assert by_variable[variable] == value


def test_override_nests_and_ends_on_an_error(fresh: Setter) -> None:
    def fails() -> None:
        with env.override(ring="host"):
            assert (env.get().link, env.get().ring) == ("bridged", "host")
            raise RuntimeError

    fresh(VKPAR_DEVICES="cpu")
    with env.override(link="bridged") as outer:
        assert (outer.link, outer.devices) == ("bridged", "cpu")
        with pytest.raises(RuntimeError):
            fails()
        assert env.get() is outer
    assert env.get().link == "auto"


def test_override_refuses_unknown_fields(fresh: Setter) -> None:
    with pytest.raises(TypeError), env.override(speed=11):
        pass
    assert env.get() == env.Environment()


def test_debug_checks(fresh: Setter) -> None:
    assert env.debug_checks() == frozenset()
    with env.override(debug=" memory, slots,"):
        assert env.debug_checks() == {"memory", "slots"}
    with pytest.raises(InvalidUsageError, match=r"VKPAR_DEBUG='slots,fire': .*slots, memory"):
        env.override(debug="slots,fire").__enter__()
    assert env.debug_checks() == frozenset()


def test_settings_are_frozen(fresh: Setter) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        env.get().devices = "gpu"  # type: ignore[misc]


def test_describe_has_a_row_per_variable(fresh: Setter) -> None:
    fresh(VKPAR_ALGORITHM="ring")
    rows = {row["variable"]: row for row in env.describe()}
    assert len(rows) == len(dataclasses.fields(env.Environment))
    assert rows["VKPAR_ALGORITHM"]["value"] == "ring"
    assert rows["VKPAR_ALGORITHM"]["default"] == "auto"
    assert all(row["meaning"] and row["variable"].startswith("VKPAR_") for row in rows.values())


def test_every_algorithm_may_be_named(fresh: Setter) -> None:
    from vkpar.comm.schedule.algorithms.table import TABLE

    for name in ("auto", *TABLE):
        with env.override(algorithm=name):
            assert env.get().algorithm == name


def test_every_feature_may_be_left_off_and_is_explained(fresh: Setter) -> None:
    meaning = next(row["meaning"] for row in env.describe() if row["variable"] == "VKPAR_WITHOUT")
    for name in env.FEATURES:
        with env.override(without=name):
            assert env.without() == {name}
        assert f" {name} (" in meaning
    with pytest.raises(InvalidUsageError, match="storage_16bit, subgroup"), env.override(without="subgroups"):
        pass


def test_a_bad_variable_ends_the_first_command() -> None:
    done = run_child(
        "from vkpar.__main__ import main; import sys; sys.exit(main(['env']))",
        environment=child_environment(VKPAR_DEBUG="bogus"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("vkpar: error: VKPAR_DEBUG='bogus'")


def test_a_misspelt_variable_is_named_once(fresh: Setter, caplog: pytest.LogCaptureFixture) -> None:
    fresh(VKPAR_DEVICE="gpu", VKPAR_FROBNICATE_THINGS="1", VKPAR_TEST_L="x", VKPAR_REQUIRE_DRIVERS="x")
    for _ in range(2):
        assert env.get() == env.Environment()
    said = [record.getMessage() for record in caplog.records if record.name == "vkpar"]
    assert len(said) == 2
    assert "VKPAR_DEVICE is none of vkpar's" in said[0]
    assert "did you mean VKPAR_DEVICES?" in said[0]
    assert "VKPAR_FROBNICATE_THINGS" in said[1]
    assert "vkpar env" in said[1]
