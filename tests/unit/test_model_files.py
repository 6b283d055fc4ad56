"""What people's model files hold besides what a model takes: refused when they are opened, or known to be idle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkpar import InvalidUsageError, UnsupportedError, WeightsError
from vkpar.parallel import open_weights
from vkpar.parallel.models import bert_config, open_encoder, open_model, tiny

safetensors_numpy = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

Tensors = dict[str, np.ndarray]
NAME = "model.layers.1.mlp.up_proj.weight"
ENCODER: dict[str, Any] = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 12,
}


def save(folder: Path, tensors: Mapping[str, np.ndarray], *, shards: int = 1) -> None:
    """Write tensors as transformers does, in one file or in several with an index."""
    if shards == 1:
        safetensors_numpy.save_file(dict(tensors), folder / "model.safetensors")
        return
    files: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        safetensors_numpy.save_file(part, folder / file)
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def decoder(folder: Path, change: Callable[[Tensors], Any], config: Mapping[str, Any] = {}, *, shards: int = 1) -> Path:
    """Write a tiny decoder whose tensors and configuration are changed."""
    tensors: Tensors = dict(tiny.weights(tiny.SIZES))
    change(tensors)
    (folder / "config.json").write_text(json.dumps(tiny.as_json(tiny.SIZES) | dict(config)))
    save(folder, tensors, shards=shards)
    return folder


def encoder(folder: Path, change: Callable[[Tensors], Any], config: Mapping[str, Any] = {}, *, shards: int = 1) -> Path:
    """Write an encoder of zeros whose tensors and configuration are changed."""
    shapes = bert_config.shapes(bert_config.of_json(ENCODER, "it"))
    tensors: Tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    change(tensors)
    (folder / "config.json").write_text(json.dumps(ENCODER | dict(config)))
    save(folder, tensors, shards=shards)
    return folder


def gguf_file(folder: Path, change: Callable[[Tensors], Any]) -> Path:
    """Write a tiny decoder as a GGUF file whose tensors are changed."""
    made = folder / "made.gguf"
    tiny.write_gguf(made, tiny.SIZES, tiny.weights(tiny.SIZES), "f32")
    reader = gguf.GGUFReader(made)
    tensors: Tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    change(tensors)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made.unlink()
    return folder / "model.gguf"


def with_more(more: Mapping[str, np.ndarray]) -> Callable[[Tensors], None]:
    """Return a change that adds tensors, or puts them in place of others."""
    return lambda tensors: tensors.update(more)


def stored_as(name: str, dtype: str) -> Callable[[Tensors], None]:
    """Return a change of a tensor's type."""
    return lambda tensors: tensors.update({name: tensors[name].astype(dtype)})


def matrices(tensors: Tensors) -> list[str]:
    """Return the names of weights of products."""
    return [name for name, tensor in tensors.items() if tensor.ndim == 2 and ("proj" in name or "encoder" in name)]


# ---- quantised in ways that are not known ----

BITS = np.int32
SCHEMES: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Tensors]]] = {
    "compressed-tensors, int8": (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"}},
        lambda w: {"weight": w.astype(np.int8), "weight_scale": w[:, :1]},
    ),
    "compressed-tensors, packed": (
        {"compression_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
        lambda w: {"weight_packed": w[:, ::8].astype(BITS), "weight_scale": w[:, :1], "weight_shape": BITS([1, 2])},
    ),
    "bitsandbytes, int8": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        lambda w: {"weight": w.astype(np.int8), "SCB": w[:, 0]},
    ),
    "bitsandbytes, nf4": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        lambda w: {
            "weight": np.zeros((w.size // 2, 1), np.uint8),
            "weight.absmax": w[0],
            "weight.quant_state.bitsandbytes__nf4": np.zeros(8, np.uint8),
        },
    ),
    "gptq": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        lambda w: {"qweight": w[::8].astype(BITS), "qzeros": BITS([[1]]), "scales": w[:1], "g_idx": BITS([0])},
    ),
    "awq": (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        lambda w: {"qweight": w[:, ::8].astype(BITS), "qzeros": BITS([[1]]), "scales": w[:1]},
    ),
    "mlx": (
        {"quantization": {"group_size": 64, "bits": 4}},
        lambda w: {"weight": w[:, ::8].astype(np.uint32), "scales": w[:, :1], "biases": w[:, :1]},
    ),
    "scales alone": (
        {"quantization_config": {"quant_method": "fp8"}},
        lambda w: {"weight": w, "weight_scale_inv": np.ones((1, 1), np.float32)},
    ),
}
OPENERS = {"decoder": (decoder, open_model), "encoder": (encoder, open_encoder)}


def quantised(make: Callable[[np.ndarray], Tensors]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in matrices(tensors):
            weight = tensors.pop(name)
            tensors |= {name.removesuffix("weight") + part: each for part, each in make(weight).items()}

    return change


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_unknown_quantisation_is_refused_when_a_model_is_opened(
    tmp_path: Path, scheme: str, kind: str, shards: int
) -> None:
    config, make = SCHEMES[scheme]
    write, opened = OPENERS[kind]
    write(tmp_path, quantised(make), config, shards=shards)
    key, how = next(iter(config.items()))
    with pytest.raises(UnsupportedError, match=rf"config\.json: {key}.*{how.get('quant_method', '')}"):
        opened(tmp_path)
    # Old files do not say so in config.json; their tensors tell.
    (tmp_path / "config.json").write_text(json.dumps(tiny.as_json(tiny.SIZES) if kind == "decoder" else ENCODER))
    with pytest.raises((UnsupportedError, InvalidUsageError), match=r"proj|encoder\.layer|weight"):
        opened(tmp_path)


def test_an_empty_quantisation_is_none(tmp_path: Path) -> None:
    for nothing in (None, {}):
        with open_model(decoder(tmp_path, lambda tensors: None, {"quantization_config": nothing})) as file:
            assert file.config.layers == 2


@pytest.mark.parametrize("how", [[1], "int8", {"quant_method": 8}, {"quant_algo": "NVFP4"}, {"load_in_8bit": False}])
def test_any_other_quantisation_is_one(tmp_path: Path, how: Any) -> None:
    for write, opened in OPENERS.values():
        with pytest.raises(UnsupportedError, match=r"config\.json: quantization_config.* is not supported"):
            opened(write(tmp_path, lambda tensors: None, {"quantization_config": how}))


def test_what_stands_in_a_weight_s_place_is_named(tmp_path: Path) -> None:
    decoder(tmp_path, quantised(SCHEMES["gptq"][1]))
    with pytest.raises(UnsupportedError, match=r"q_proj\.(qweight|g_idx|qzeros|scales).* in place of .*q_proj\.weight"):
        open_model(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float64", "bool"])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, dtype: str) -> None:
    for name in (NAME, "model.norm.weight", "model.embed_tokens.weight"):
        with pytest.raises(UnsupportedError, match=rf"{name} is stored as {dtype}.*float32, float16, bfloat16"):
            open_model(decoder(tmp_path, stored_as(name, dtype)))
    for name in ("encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias"):
        with pytest.raises(UnsupportedError, match=rf"{name} is stored as {dtype}"):
            open_encoder(encoder(tmp_path, stored_as(name, dtype)))
    if dtype in ("int8", "int32", "float64"):
        for name in ("blk.1.ffn_up.weight", "output_norm.weight"):
            with pytest.raises(UnsupportedError, match=rf"{name} is stored as {dtype}"):
                open_model(gguf_file(tmp_path, stored_as(name, dtype)))


def test_a_norm_in_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    config = tiny.SIZES
    tiny.write_gguf(path, config, tiny.weights(config), "f32")
    raw = path.read_bytes()
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8  # its dimensions, then its type
    path.write_bytes(raw[:at] + (8).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(UnsupportedError, match=r"output_norm\.weight is stored as q8_0"):
        open_model(path)


# ---- tensors that would not be used ----

ONE = np.ones(16, np.float32)
UNKNOWN = [
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.self_attn.q_proj.lora_A.weight",
    "model.layers.2.mlp.up_proj.weight",  # a block more than the configuration says
    "model.layers.00.mlp.up_proj.weight",
    "model.layers.0.input_layernorm.bias",
    "model.layers.0.post_feedforward_layernorm.weight",
    "model.embed_tokens.bias",
    "model.norm.bias",
    "lm_head.bias",
    "score.weight",
    "rotary_emb.inv_freq.scale",
]
IDLE = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rotary_emb.cos_cached"]


@pytest.mark.parametrize("shards", [1, 2])
def test_tensors_that_a_decoder_would_not_use_are_named(tmp_path: Path, shards: int) -> None:
    for name in UNKNOWN:
        with pytest.raises(UnsupportedError, match=rf"holds {name} \(in model.*\), which the model does not use"):
            open_model(decoder(tmp_path, with_more({name: ONE}), shards=shards))
    many = {f"more.{number}": ONE for number in range(20)}
    with pytest.raises(
        UnsupportedError, match=r"holds more\.\d+, more\.\d+, more\.\d+ and 17 more \(in model.*safetensors\), which"
    ):
        open_model(decoder(tmp_path, with_more(many), shards=shards))
    open_model(decoder(tmp_path, with_more(dict.fromkeys(IDLE, ONE)), shards=shards)).close()


def test_biases_of_products_are_used(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in matrices(tensors):
            tensors[name.removesuffix("weight") + "bias"] = tensors[name][:, 0].copy()

    open_model(decoder(tmp_path, change)).close()
    with pytest.raises(InvalidUsageError, match=r"up_proj\.bias has shape \(16,\)"):
        open_model(decoder(tmp_path, with_more({NAME.replace("weight", "bias"): ONE})))


def test_a_tied_model_may_hold_a_copy_of_its_table(tmp_path: Path) -> None:
    config = {"tie_word_embeddings": True}
    open_model(decoder(tmp_path, lambda tensors: None, config)).close()
    open_model(decoder(tmp_path, lambda tensors: tensors.pop("lm_head.weight"), config)).close()
    with pytest.raises(InvalidUsageError, match=r"lm_head\.weight has shape \(16,\)"):
        open_model(decoder(tmp_path, with_more({"lm_head.weight": ONE}), config))


def test_tensors_of_gguf_files(tmp_path: Path) -> None:
    for name in (
        "blk.0.attn_q_norm.weight",
        "output.bias",
        "blk.0.attn_norm.bias",
        "blk.0.ffn_up.scale",
        "blk.2.ffn_up.weight",
        "rope_factors_long.weight",
        "blk.0.attn_sinks.weight",
    ):
        with pytest.raises(UnsupportedError, match=rf"holds {name} \(in model.*\), which the model does not use"):
            open_model(gguf_file(tmp_path, with_more({name: ONE})))
    with pytest.raises(UnsupportedError, match=r"has blk\.0\.attn_q\.scales in place of blk\.0\.attn_q\.weight"):
        open_model(gguf_file(tmp_path, lambda t: t.update({"blk.0.attn_q.scales": t.pop("blk.0.attn_q.weight")})))
    idle = {"blk.0.attn_rot_embd": ONE, "rope_freqs.weight": ONE[:8], "blk.0.attn_q.bias": np.zeros(64, np.float32)}
    open_model(gguf_file(tmp_path, with_more(idle))).close()


@pytest.mark.parametrize("shards", [1, 2])
def test_tensors_of_encoders(tmp_path: Path, shards: int) -> None:
    for name in (
        "encoder.layer.2.output.dense.weight",
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "encoder.layer.0.output.LayerNorm.gamma",
        "pooler.dense.weight_scale",
        "classifier.weight",
    ):
        with pytest.raises(UnsupportedError, match=rf"holds {name} \(in model.*\), which the model does not use"):
            open_encoder(encoder(tmp_path, with_more({name: ONE}), shards=shards))
    idle = {"embeddings.position_ids": np.arange(12)[None], "pooler.dense.weight": ONE, "pooler.dense.bias": ONE}
    open_encoder(encoder(tmp_path, with_more(idle), shards=shards)).close()
    name = "encoder.layer.1.attention.self.query.bias"
    with pytest.raises(InvalidUsageError, match=f"has no tensor {name}"):
        open_encoder(encoder(tmp_path, lambda tensors: tensors.pop(name), shards=shards))


def test_a_gguf_file_beside_a_configuration_is_opened_by_its_own_name(tmp_path: Path) -> None:
    """Its rows of queries and keys are in another order than those of the folder's configuration."""
    path = gguf_file(tmp_path, lambda tensors: None)
    (tmp_path / "config.json").write_text(json.dumps(tiny.as_json(tiny.SIZES)))
    with pytest.raises(UnsupportedError, match=rf"open {path} itself"):
        open_model(tmp_path)
    open_model(path).close()


# ---- GGUF models in several files ----


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The parts of a tiny model, as llama-gguf-split writes them, of up to nine tensors each."""
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=9))
    (tmp_path / "parts").mkdir()
    tiny.write_gguf(tmp_path / "parts" / "m.gguf", tiny.SIZES, tiny.weights(tiny.SIZES), "q8_0")
    return sorted((tmp_path / "parts").iterdir())


def test_any_part_opens_the_model(tmp_path: Path, parts: list[Path]) -> None:
    gguf.GGUFWriter.keywords["split_max_tensors"] = 0
    tiny.write_gguf(tmp_path / "whole.gguf", tiny.SIZES, tiny.weights(tiny.SIZES), "q8_0")
    assert len(parts) == 3
    with open_model(tmp_path / "whole.gguf") as whole:
        for part in parts:
            with open_model(part) as file:
                assert file.config == whole.config
                assert file.weights.keys() == whole.weights.keys()
                assert {tensor.source for tensor in file.weights.values()} == set(map(str, parts))
                for name, tensor in whole.weights.items():
                    assert np.array_equal(file.weights[name].read(), tensor.read())
    with open_weights(parts[0].parent) as folder:
        assert (len(folder), folder.metadata["split.count"]) == (21, 3)


def test_parts_that_do_not_belong_together(tmp_path: Path, parts: list[Path]) -> None:
    first, second, third = parts

    def refused(path: Path, message: str) -> None:
        with pytest.raises(WeightsError, match=message):
            open_weights(path)

    other = tmp_path / "m-00001-of-00004.gguf"
    for name in ("another.gguf", other.name, "m-00002-of-00003.gguf", "m-1-of-3.gguf"):
        (tmp_path / name).write_bytes(first.read_bytes())
        refused(tmp_path / name, r"part 1 of 3 of a model; its name is to end in -00001-of-00003\.gguf")
    kept = second.read_bytes()
    second.unlink()
    refused(third, r"m-00002-of-00003\.gguf: cannot be read: .*No such file")
    refused(first.parent, r"has 2 GGUF files: name one")
    second.write_bytes(third.read_bytes())
    refused(first, r"part 3 of 3 of a model; its name is to end in -00003-of-00003\.gguf")
    gguf.GGUFWriter.keywords["split_max_tensors"] = 0
    tiny.write_gguf(second, tiny.SIZES, tiny.weights(tiny.SIZES), "q8_0")
    refused(first, r"m-00002-of-00003\.gguf: is none of the 3 parts of a model")
    open_model(second).close()  # it is whole, whatever it is called
    at = kept.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    second.write_bytes(kept[:at] + b"\x16" + kept[at + 1 :])
    refused(first, r"m-00002-of-00003\.gguf: says that all parts have 22 tensors; they have 21")
    second.write_bytes(kept)
    open_model(first).close()


def test_files_that_are_called_parts_and_are_none(tmp_path: Path) -> None:
    """A folder of them is no model; each of them is."""
    for number in (1, 2):
        path = tmp_path / f"m-0000{number}-of-00002.gguf"
        tiny.write_gguf(path, tiny.SIZES, tiny.weights(tiny.SIZES, number))
        open_model(path).close()
    with pytest.raises(WeightsError, match="is none of the 2 parts of a model"):
        open_weights(tmp_path)


# ---- files that are none ----

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 12345\n"


def test_a_pointer_of_git_lfs_is_told_as_one(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    config = tiny.write_folder(tmp_path, text="sums of tensors\n" * 50)
    kept = {file: (tmp_path / file).read_bytes() for file in ("config.json", "model.safetensors", "tokenizer.json")}
    assert config.stops == (0,)
    for file, whole in kept.items():
        (tmp_path / file).write_bytes(POINTER)
        with pytest.raises(WeightsError, match=f"{file}: a pointer of git-lfs.*git lfs pull"):
            open_model(tmp_path).tokenizer()
        (tmp_path / file).write_bytes(whole)
    open_model(tmp_path).tokenizer()
    for file in ("generation_config.json", "model.safetensors.index.json"):
        (tmp_path / file).write_bytes(POINTER)
        with pytest.raises(WeightsError, match=f"{file}: a pointer of git-lfs"):
            open_model(tmp_path)
        (tmp_path / file).unlink()
    for old in (POINTER, POINTER.replace(b"git-lfs", b"hawser")):
        (tmp_path / "a.gguf").write_bytes(old)
        for opened in (open_weights, open_model):
            with pytest.raises(WeightsError, match=r"a\.gguf: a pointer of git-lfs"):
                opened(tmp_path / "a.gguf")
    encoder(tmp_path, lambda tensors: None)
    (tmp_path / "config.json").write_bytes(POINTER)
    with pytest.raises(WeightsError, match=r"config\.json: a pointer of git-lfs"):
        open_encoder(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.timeout(60)
def test_files_beside_weights_are_neither_waited_for_nor_read_without_end(tmp_path: Path, file: str) -> None:
    decoder(tmp_path, lambda tensors: None)
    (tmp_path / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / file)
    with pytest.raises(InvalidUsageError, match=rf"{file}.*not a regular file"):
        open_model(tmp_path)
    (tmp_path / file).unlink()
    with (tmp_path / file).open("wb") as stream:
        stream.truncate(20 << 30)
    with pytest.raises(InvalidUsageError, match=rf"{file}.*more than 100000000 bytes"):
        open_model(tmp_path)


def test_a_giant_tokenizer_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    decoder(tmp_path, lambda tensors: None)
    with (tmp_path / "tokenizer.json").open("wb") as stream:
        stream.truncate(20 << 30)
    with pytest.raises(InvalidUsageError, match=r"tokenizer\.json.*more than 100000000 bytes"):
        open_model(tmp_path).tokenizer()
