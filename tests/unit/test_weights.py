"""Files of weights: what their own packages wrote is read; what is damaged or hostile is refused, and costs nothing."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError, WeightsError, dtypes
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel import open_weights
from vkpar.parallel.models import open_model

safetensors_numpy = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

KINDS = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]
KINDS += ["q2_k", "q3_k", "iq4_nl", "iq4_xs", "mxfp4"]
# Where blocks have float16, by byte.
SCALES = {"q6_k": (208,), "q2_k": (80, 82), "q3_k": (108,), "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": ()}
SOME = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.int64),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "none": np.zeros((0, 4), np.float32),
    "one": np.array(7, np.int32),
    "flag": np.array([True, False]),
}


def code_of(kind: str) -> Any:
    return gguf.GGMLQuantizationType[kind.upper()]


def blocks_of(rng: np.random.Generator, kind: str, rows: int, blocks: int) -> np.ndarray:
    """Return random blocks whose scales are numbers."""
    form = FORMATS[kind]
    raw = rng.integers(0, 256, (rows * blocks, form.nbytes), np.uint8)
    for at in SCALES.get(kind, (0,) if kind.endswith("_0") else (0, 2)):
        raw[:, at : at + 2] = rng.standard_normal((len(raw), 1)).astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)


def write_gguf(path: Path, blocks: dict[str, np.ndarray] | None = None) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.eps", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "grüße")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_tensor("a.weight", SOME["a.weight"])
    writer.add_tensor("half", SOME["half"])
    for name, raw in (blocks or {}).items():
        writer.add_tensor(name, raw, raw_dtype=code_of(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- what is right ----


def test_safetensors(tmp_path: Path) -> None:
    safetensors_numpy.save_file(SOME, tmp_path / "m.safetensors", metadata={"format": "np"})
    for path in (tmp_path / "m.safetensors", tmp_path):
        with open_weights(path) as weights:
            assert set(weights) == set(SOME)
            assert weights.metadata == {"format": "np"}
            for name, want in SOME.items():
                lazy = weights[name]
                assert (lazy.shape, lazy.dtype, lazy.nbytes, lazy.kind) == (want.shape, want.dtype, want.nbytes, None)
                assert np.array_equal(lazy.read(), want)
            values = weights["a.weight"].read((slice(1, 3), slice(0, 2)))
            assert np.array_equal(values, SOME["a.weight"][1:3, :2])
            assert not values.flags.writeable
            assert not values.flags.owndata
        assert values[0, 0] == 4  # the mapping lives as long as arrays over it
        with pytest.raises(InvalidUsageError, match="closed"):
            weights["b"].read()


def test_bfloat16_and_places_at_odd_bytes(tmp_path: Path) -> None:
    values = np.linspace(-3, 3, 6).astype(dtypes.bfloat16.numpy)
    header = b'{"x":{"dtype":"U8","shape":[1], "data_offsets":[0,1]},'
    header += b'"y":{"dtype":"BF16","shape":[2,3],"data_offsets":[1,13]}}'
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\5" + values.tobytes())
    with open_weights(path) as weights:
        assert weights["y"].dtype == "bfloat16"
        assert weights["y"].read().dtype == values.dtype
        assert np.array_equal(weights["y"].read(), values.reshape(2, 3))
        assert weights["x"].read()[0] == 5


def test_a_folder_with_an_index(tmp_path: Path) -> None:
    parts = {"model-1.safetensors": ["a.weight", "b"], "model-2.safetensors": ["half"]}
    for file, names in parts.items():
        safetensors_numpy.save_file({name: SOME[name] for name in names}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    listed = {name: file for file, names in parts.items() for name in names}
    index.write_text(json.dumps({"weight_map": listed}))
    with open_weights(tmp_path) as weights:
        assert set(weights) == {"a.weight", "b", "half"}
        assert weights.nbytes == sum(SOME[name].nbytes for name in weights)
        assert weights.get("nothing") is None
        assert "nothing" not in weights
        with pytest.raises(WeightsError, match=r"did you mean 'a\.weight'"):
            weights["a.weigth"]
    bad: list[Any] = [
        {"weight_map": listed | {"c": "model-2.safetensors"}},
        {"weight_map": listed | {"c": "model-3.safetensors"}},
        {"weight_map": listed | {"c": "../m.safetensors"}},
        {"weight_map": listed | {"c": 3}},
        {"weight_map": [1]},
        {},
        [],
    ]
    for document in bad:
        index.write_text(json.dumps(document))
        with pytest.raises(WeightsError):
            open_weights(tmp_path)
    index.unlink()
    safetensors_numpy.save_file({"b": SOME["b"]}, tmp_path / "model-3.safetensors")
    with pytest.raises(WeightsError, match=r"tensor 'b': is in .*model-1"):
        open_weights(tmp_path)


def test_gguf_as_its_package_writes_and_reads_it(tmp_path: Path, rng: np.random.Generator) -> None:
    blocks = {kind: blocks_of(rng, kind, 3, 2) for kind in KINDS}
    path = tmp_path / "m.gguf"
    write_gguf(path, blocks)
    with open_weights(path) as weights:
        assert weights.metadata["llama.block_count"] == 2
        assert weights.metadata["yes"] is True
        assert weights.metadata["text"] == "grüße"
        assert weights.metadata["tokenizer.ggml.tokens"] == ["<s>", "a", "ü"]
        assert weights.metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1.0, 2.0]
        assert np.array_equal(weights["a.weight"].read(), SOME["a.weight"])
        assert np.array_equal(weights["half"].read((slice(None), 1)), SOME["half"][:, 1])
        for kind, raw in blocks.items():
            lazy, want = weights[kind], gguf.quants.dequantize(raw, code_of(kind))
            assert lazy.kind is FORMATS[kind]
            assert (lazy.shape, lazy.nbytes) == (want.shape, raw.nbytes)
            assert np.array_equal(lazy.read(), want)
            assert np.array_equal(lazy.read((slice(1, 3), slice(5, 40))), want[1:3, 5:40])
            assert np.array_equal(lazy.read(slice(0, 1)), want[:1])
            unit, nbytes = FORMATS[kind].block, FORMATS[kind].nbytes
            assert np.array_equal(lazy.blocks(unit, 2 * unit, slice(1, 2)), raw[1:2, nbytes:])
            with pytest.raises(InvalidUsageError, match=f"between blocks of {unit}"):
                lazy.blocks(1)
        with pytest.raises(InvalidUsageError, match="not quantised"):
            weights["half"].blocks()
        with pytest.raises(InvalidUsageError, match="shape"):
            weights["half"].read(9)


# ---- what is wrong ----

Header = dict[str, Any]


def safetensors_bytes(header: Header | bytes, data: bytes = b"\0" * 16, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD_SAFETENSORS: dict[str, bytes] = {
    "empty": b"",
    "short": b"1234567",
    "a huge header": safetensors_bytes({}, length=1 << 63),
    "a header past the end": safetensors_bytes({}, length=100),
    "no JSON": safetensors_bytes(b"{nonsense"),
    "no UTF-8": safetensors_bytes(b'{"\xff": 1}'),
    "a list": safetensors_bytes(b"[]"),
    "deep": safetensors_bytes(b'{"a":' * 100_000),
    "many digits": safetensors_bytes(b'{"a":' + b"9" * 10_000 + b"}"),
    "infinity": safetensors_bytes(b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,16]}}'),
    "twice": safetensors_bytes(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)),
    "no entry": safetensors_bytes({"a": 3}),
    "keys missing": safetensors_bytes({"a": {"dtype": "F32"}}),
    "an unknown type": safetensors_bytes({"a": entry("F8_E4M3", (16,))}),
    "a type that is no text": safetensors_bytes({"a": entry(["F32"])}),
    "a negative dimension": safetensors_bytes({"a": entry(shape=(-4,))}),
    "a broken dimension": safetensors_bytes({"a": entry(shape=(4.0,))}),
    "true as a dimension": safetensors_bytes({"a": entry(shape=(True, 4))}),
    "a huge dimension": safetensors_bytes({"a": entry(shape=(1 << 62, 1 << 62))}),
    "many dimensions": safetensors_bytes({"a": entry(shape=[1] * 33 + [4])}),
    "another size": safetensors_bytes({"a": entry(shape=(5,))}),
    "backwards": safetensors_bytes({"a": entry(offsets=(16, 0))}),
    "past the end": safetensors_bytes({"a": entry(offsets=(16, 32))}),
    "three offsets": safetensors_bytes({"a": entry(offsets=(0, 8, 16))}),
    "over another": safetensors_bytes({"a": entry(), "b": entry(shape=(2,), offsets=(4, 12))}),
    "bytes left over": safetensors_bytes({"a": entry(shape=(2,), offsets=(0, 8))}),
    "a long name": safetensors_bytes({"a" * 5000: 3}),
    "metadata of numbers": safetensors_bytes({"__metadata__": {"a": 1}, "a": entry()}),
}


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf_bytes(
    keys: list[bytes] | None = None, infos: list[bytes] | None = None, *, data: bytes = b"\0" * 64, **counts: int
) -> bytes:
    keys, infos = keys or [], infos or []
    head = struct.pack(
        "<4sIQQ", b"GGUF", counts.get("version", 3), counts.get("tensors", len(infos)), counts.get("nkeys", len(keys))
    )
    raw = head + b"".join(keys) + b"".join(infos)
    return raw + b"\0" * (-len(raw) % 32) + data


def info(
    name: bytes = b"a", dims: tuple[int, ...] = (4,), code: int = 0, offset: int = 0, ndim: int | None = None
) -> bytes:
    ndim = len(dims) if ndim is None else ndim
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", ndim, *dims, code, offset)


def key(name: bytes, code: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", code) + value


HUGE = (1 << 64) - 1
BAD_GGUF: dict[str, bytes] = {
    "the magic number alone": b"GGUF",
    "version 1": gguf_bytes(version=1),
    "big-endian": gguf_bytes(version=0x03000000),
    "huge numbers of tensors": gguf_bytes(tensors=HUGE),
    "huge numbers of keys": gguf_bytes(nkeys=HUGE),
    "a huge key": gguf_bytes([struct.pack("<Q", HUGE) + b"a" * 20]),
    "a key without a name": gguf_bytes([key(b"", 4, b"\0" * 4)]),
    "a key twice": gguf_bytes([key(b"a", 4, b"\0" * 4)] * 2),
    "a key that is no UTF-8": gguf_bytes([key(b"\xff\xfe", 4, b"\0" * 4)]),
    "a text that is no UTF-8": gguf_bytes([key(b"a", 8, text(b"\xff"))]),
    "an unknown type of value": gguf_bytes([key(b"a", 13, b"\0" * 8)]),
    "a huge text": gguf_bytes([key(b"a", 8, struct.pack("<Q", 1 << 62))]),
    "a huge array": gguf_bytes([key(b"a", 9, struct.pack("<IQ", 4, 1 << 62))]),
    "a huge array of texts": gguf_bytes([key(b"a", 9, struct.pack("<IQ", 8, HUGE))]),
    "an array of arrays": gguf_bytes([key(b"a", 9, struct.pack("<IQ", 9, 1) * 50_000)]),
    "an array of an unknown type": gguf_bytes([key(b"a", 9, struct.pack("<IQ", 77, 1))]),
    "neither true nor false": gguf_bytes([key(b"a", 7, b"\2")]),
    "alignment 0": gguf_bytes([key(b"general.alignment", 4, struct.pack("<I", 0))], [info()]),
    "alignment 48": gguf_bytes([key(b"general.alignment", 4, struct.pack("<I", 48))], [info()]),
    "an alignment that is a text": gguf_bytes([key(b"general.alignment", 8, text(b"32"))], [info()]),
    "a part of a model": gguf_bytes([key(b"split.count", 2, struct.pack("<H", 3))], [info()]),
    "a name twice": gguf_bytes(infos=[info(), info(offset=32)]),
    "a long name": gguf_bytes(infos=[info(b"a" * 5000)]),
    "no name": gguf_bytes(infos=[info(b"")]),
    "a name that is no UTF-8": gguf_bytes(infos=[info(b"\xc3\x28")]),
    "five dimensions": gguf_bytes(infos=[info(dims=(1, 1, 1, 1, 4))]),
    "dimensions without end": gguf_bytes(infos=[info(ndim=(1 << 32) - 1)]),
    "a huge dimension": gguf_bytes(infos=[info(dims=(1 << 63, 1 << 63))]),
    "an unknown type": gguf_bytes(infos=[info(code=16, dims=(256,))]),
    "another unknown type": gguf_bytes(infos=[info(code=999)]),
    "a broken block": gguf_bytes(infos=[info(dims=(33,), code=8)]),
    "past the end": gguf_bytes(infos=[info(dims=(40,))]),
    "an offset past the end": gguf_bytes(infos=[info(offset=1 << 40)]),
    "misaligned": gguf_bytes(infos=[info(offset=4)]),
    "over another": gguf_bytes(infos=[info(dims=(16,)), info(b"b", offset=32)]),
    "no data": gguf_bytes(infos=[info()], data=b""),
}
BAD = {f"{name}.safetensors": raw for name, raw in BAD_SAFETENSORS.items()}
BAD |= {f"{name}.gguf": raw for name, raw in BAD_GGUF.items()}


@pytest.mark.parametrize("name", BAD)
def test_a_hostile_file_is_refused_and_costs_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name])
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError) as caught:
            open_weights(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000 + 20 * len(BAD[name])
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_name_twice_is_found_in_one_pass(tmp_path: Path) -> None:
    count = 200_000  # counting each name anew would take hours
    names = ",".join(f'"{number}":0' for number in range(count))
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(b"{%b,%b}" % (names.encode(), b'"%d":0' % (count - 1))))
    began = time.monotonic()
    with pytest.raises(WeightsError, match="twice"):
        open_weights(path)
    assert time.monotonic() - began < 30


def model_bytes(*infos: bytes, data: bytes = b"\0" * 64) -> bytes:
    """Return a GGUF file of a decoder with one head of four elements."""
    sizes = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
    keys = [key(b"general.architecture", 8, text(b"llama"))]
    for name, size in zip(sizes, (1, 4, 4, 1), strict=True):
        keys.append(key(f"llama.{name}".encode(), 4, struct.pack("<I", size)))
    return gguf_bytes(keys, list(infos), data=data)


@pytest.mark.parametrize(
    ("table", "divisors", "error", "message"),
    [
        ((), None, InvalidUsageError, r"token_embd\.weight has shape \(\)"),
        ((4,), None, InvalidUsageError, "not rows of tokens"),
        ((4, 2), {"dims": (1, 2)}, InvalidUsageError, r"rope_freqs\.weight has shape \(2, 1\)"),
        ((4, 2), {"dims": ()}, InvalidUsageError, r"rope_freqs\.weight has shape \(\)"),
        ((4, 2), {"dims": (3,)}, InvalidUsageError, "has 3 divisors; heads of 4 take 2"),
        ((4, 2), {"dims": (2,), "code": 30}, UnsupportedError, "of bfloat16 is not supported"),
        ((4, 2), {"dims": (2,), "code": 26}, UnsupportedError, "of int32 is not supported"),
        ((4, 2), {"dims": (32,), "code": 2}, UnsupportedError, "of q4_0 is not supported"),
        ((4, 2), {"dims": (2,)}, InvalidUsageError, "numbers above 0"),
    ],
)
def test_wrong_tensors_are_found_when_a_model_is_opened(
    tmp_path: Path, table: tuple[int, ...], divisors: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    path = tmp_path / "m.gguf"
    infos = [info(b"token_embd.weight", table)]
    if divisors is not None:
        infos.append(info(b"rope_freqs.weight", offset=32, **divisors))
    path.write_bytes(model_bytes(*infos))
    with pytest.raises(error, match=message):
        open_model(path)


def test_divisors_of_a_model_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = [(b"rope_freqs.weight", (2,)), (b"token_embd.weight", (4, 2)), (b"output_norm.weight", (4,))]
    tensors += [(f"blk.0.{part}_norm.weight".encode(), (4,)) for part in ("attn", "ffn")]
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    tensors += [(f"blk.0.{part}.weight".encode(), (4, 4)) for part in parts]
    infos = [info(name, shape, offset=64 * number) for number, (name, shape) in enumerate(tensors)]
    path.write_bytes(model_bytes(*infos, data=struct.pack("<2f", 1, 8) + b"\0" * 64 * len(tensors)))
    with open_model(path) as model:
        assert model.config.scaling == (1.0, 8.0)


def test_types_are_told_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    named = {each.value: each.name for each in gguf.GGMLQuantizationType}
    named |= {4: "Q4_2", 31: "Q4_0_4_4", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 1 << 20: "number 1048576"}
    readable = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", *map(str.upper, KINDS)}
    for code, name in named.items():
        path.write_bytes(gguf_bytes(infos=[info(b"a", (256,), code)], data=b"\0" * 2048))
        if name in readable:
            with open_weights(path) as weights:
                assert weights["a"].shape == (256,)
            continue
        with pytest.raises(WeightsError, match=rf"tensor 'a': is of ggml's type {name}; vkpar reads F32, F16, .*Q4_K"):
            open_weights(path)
    assert readable <= set(named.values())


def test_places_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    missing: list[Any] = [tmp_path / "none.gguf", tmp_path / "folder", tmp_path / "pipe.gguf", "a\0b", "", 3, None]
    for path in missing:
        with pytest.raises(WeightsError):
            open_weights(path)
    for name in ("a", "b"):
        (tmp_path / "folder" / f"{name}.gguf").write_bytes(gguf_bytes(infos=[info()]))
    with pytest.raises(WeightsError, match=r"2 GGUF files: name one, such as a\.gguf"):
        open_weights(tmp_path / "folder")


def damaged(draw: Callable[..., Any], raw: bytes) -> bytes:
    """Return a file with some bytes changed, cut out or put in."""
    made = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(made) - 1)))
        how = draw(st.sampled_from(["change", "cut", "insert", "end", "number"]))
        if how == "change" and made:
            made[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del made[at : at + draw(st.integers(1, 40))]
        elif how == "insert":
            made[at:at] = draw(st.binary(min_size=1, max_size=12))
        elif how == "end":
            del made[at:]
        else:
            made[at : at + 8] = struct.pack("<Q", draw(st.sampled_from([0, 1, HUGE, 1 << 63, 1 << 32, len(raw)])))
    return bytes(made)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("good")
    write_gguf(folder / "m.gguf", {"q4_0": np.zeros((2, 18), np.uint8)})
    safetensors_numpy.save_file(SOME, folder / "m.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors"])
def test_damaged_files_raise_nothing_else(good: dict[str, bytes], tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    @given(st.data())
    def check(data: st.DataObject) -> None:
        for _ in range(20):
            path.write_bytes(damaged(data.draw, good[name]))
            try:
                weights = open_weights(path)
            except WeightsError:
                continue
            with weights, np.errstate(all="ignore"):
                for lazy in weights.values():
                    assert lazy.read().shape == lazy.shape

    check()


def test_every_shorter_file_is_refused(good: dict[str, bytes], tmp_path: Path) -> None:
    for name, raw in good.items():
        path = tmp_path / name
        for length in range(0, len(raw) - 32, 7):
            path.write_bytes(raw[:length])
            with pytest.raises(WeightsError):
                open_weights(path)
