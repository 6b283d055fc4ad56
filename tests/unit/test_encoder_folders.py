"""Folders of sentence encoders: every file that changes embeddings is followed, or named in an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.errors import VkparError
from vkpar.parallel.models import EncoderFile, nearest
from vkpar.parallel.models.bert_config import BertConfig, read_folder

CONFIG = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 512,
}
OLD = "sentence_transformers.models."
MODULES = [OLD + "Transformer", OLD + "Pooling", OLD + "Normalize"]
SIXTH = [
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.base.modules.normalize.Normalize",
]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def write(folder: Path, kinds: list[str] | None, **files: Any) -> Path:
    """Write a folder; files by name, without their end."""
    everything: dict[str, Any] = {"config": CONFIG, "1_Pooling/config": MEAN}
    if kinds is not None:
        paths = [f"{number}_{kind.rpartition('.')[2]}" if number else "" for number, kind in enumerate(kinds)]
        everything["modules"] = [{"path": path, "type": kind} for path, kind in zip(paths, kinds, strict=True)]
    for name, value in (everything | files).items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is not None:
            path.write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("kinds", [MODULES, SIXTH, [*MODULES[:2], OLD + "Dropout", MODULES[2]]])
def test_folders_of_every_version(tmp_path: Path, kinds: list[str]) -> None:
    assert read_folder(write(tmp_path, kinds)) == BertConfig(2, 8, 16, 2, 10, 512)


def test_a_folder_of_the_sixth_version(tmp_path: Path) -> None:
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    folder = write(
        tmp_path,
        SIXTH,
        **{"1_Pooling/config": {"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}},
        sentence_bert_config={
            "transformer_task": "feature-extraction",
            "modality_config": {"text": text},
            "module_output_name": "token_embeddings",
            "processing_kwargs": {},
            "unpad_inputs": None,
        },
        **{
            "2_Normalize/config": {
                "module_input_name": "sentence_embedding",
                "module_output_name": "sentence_embedding",
            }
        },
        config_sentence_transformers={
            "model_type": "SentenceTransformer",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        tokenizer_config={"model_max_length": 256},
    )
    assert read_folder(folder) == BertConfig(2, 8, 16, 2, 10, 256)


@pytest.mark.parametrize(
    ("own", "tokenizer", "context"),
    [
        (None, None, 512),
        ({}, {"model_max_length": 256}, 256),
        ({"max_seq_length": None}, {"model_max_length": 256}, 256),
        ({"max_seq_length": 128}, {"model_max_length": 256}, 128),
        ({"max_seq_length": 384}, {"model_max_length": 256}, 384),
        ({"max_seq_length": 1024}, None, 512),
        (None, {"model_max_length": 1000000000000000019884624838656}, 512),
        (None, {"model_max_length": 1e30}, 512),
        (None, {"model_max_length": None}, 512),
    ],
)
def test_where_texts_are_cut(tmp_path: Path, own: Any, tokenizer: Any, context: int) -> None:
    folder = write(tmp_path, MODULES, sentence_bert_config=own, tokenizer_config=tokenizer)
    assert read_folder(folder).context == context


def test_a_folder_without_modules_and_one_that_does_not_scale(tmp_path: Path) -> None:
    assert read_folder(write(tmp_path / "a", None)).normalized
    assert read_folder(write(tmp_path / "b", None, **{"1_Pooling/config": None})).normalized
    assert not read_folder(write(tmp_path / "c", MODULES[:2])).normalized


MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@pytest.mark.parametrize(("old", "new"), MODES.items())
def test_other_poolings_by_either_name(tmp_path: Path, old: str, new: str) -> None:
    for number, (found, message) in enumerate(
        [
            ({old: True}, f"{old} is not supported"),
            ({**MEAN, old: True}, f"{old} is not supported"),
            ({"pooling_mode": new}, f"pooling_mode '{new}' is not supported"),
            ({"pooling_mode": ["mean", new]}, "pooling_mode .* is not supported"),
            ({"pooling_mode": new, **MEAN}, f"pooling_mode '{new}' is not supported"),
        ]
    ):
        for kinds in (MODULES, None):
            folder = write(tmp_path / f"{number}{kinds is None}", kinds, **{"1_Pooling/config": found})
            with pytest.raises(UnsupportedError, match=message):
                read_folder(folder)
    for number, found in enumerate(({"pooling_mode": "mean", old: True}, {"pooling_mode": ["mean"]}, {}, {old: False})):
        read_folder(write(tmp_path / f"good{number}", MODULES, **{"1_Pooling/config": found}))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            [*MODULES[:2], OLD + "Dense", MODULES[2]],
            r"the module sentence_transformers\.models\.Dense is not supported",
        ),
        ([*MODULES, OLD + "Dense"], "Dense is not supported; Normalize and Dropout are"),
        ([*MODULES[:2], "my_package.Normalize"], r"the module my_package\.Normalize is not supported"),
        ([MODULES[0], MODULES[2]], "Normalize is not supported; Pooling comes there"),
        ([MODULES[0]], "without the module Pooling"),
        ([], "without the module Transformer"),
        ([OLD + "StaticEmbedding", MODULES[2]], "StaticEmbedding is not supported; Transformer comes there"),
        ([MODULES[0], OLD + "WordWeights", *MODULES[1:]], "WordWeights is not supported"),
    ],
)
def test_other_modules_are_named(tmp_path: Path, kinds: list[str], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_folder(write(tmp_path, kinds))


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"modules": {}}, InvalidUsageError, "holds no list"),
        ({"modules": ["x"]}, InvalidUsageError, "no list of modules"),
        (
            {"modules": [{"path": "0_Transformer", "type": MODULES[0]}]},
            UnsupportedError,
            "in the folder '0_Transformer'",
        ),
        ({"1_Pooling/config": None}, InvalidUsageError, "lists a module Pooling, and there is no"),
        ({"2_Normalize/config": {"module_input_name": "token_embeddings"}}, UnsupportedError, "module_input_name"),
        ({"sentence_bert_config": {"transformer_task": "fill-mask"}}, UnsupportedError, "transformer_task 'fill-mask'"),
        ({"sentence_bert_config": {"module_output_name": "x"}}, UnsupportedError, "module_output_name 'x'"),
        (
            {"sentence_bert_config": {"modality_config": {"text": {"method_output_name": "pooler_output"}}}},
            UnsupportedError,
            "pooler_output",
        ),
        ({"sentence_bert_config": {"modality_config": [1]}}, InvalidUsageError, "an object is wanted"),
        ({"sentence_bert_config": {"processing_kwargs": {"text": {}}}}, UnsupportedError, "processing_kwargs"),
        ({"sentence_bert_config": {"max_seq_length": "x"}}, InvalidUsageError, "max_seq_length is a whole number"),
        ({"tokenizer_config": {"model_max_length": "256"}}, InvalidUsageError, "model_max_length is a number from 1"),
        ({"tokenizer_config": {"model_max_length": float("nan")}}, InvalidUsageError, "model_max_length"),
        ({"tokenizer_config": {"model_max_length": 0}}, InvalidUsageError, "model_max_length"),
        ({"config_sentence_transformers": {"model_type": "SparseEncoder"}}, UnsupportedError, "'SparseEncoder'"),
        ({"config_sentence_transformers": {"truncate_dim": 128}}, UnsupportedError, "truncate_dim 128"),
        ({"config_sentence_transformers": {"default_prompt_name": "q"}}, InvalidUsageError, "default_prompt_name 'q'"),
        ({"config": CONFIG | {"is_decoder": True}}, UnsupportedError, "is_decoder True"),
        (
            {
                "config_sentence_transformers": {"default_prompt_name": "q", "prompts": {"q": "query: "}},
                "1_Pooling/config": {"include_prompt": False},
            },
            UnsupportedError,
            "include_prompt",
        ),
    ],
)
def test_files_that_ask_for_more(tmp_path: Path, files: dict[str, Any], error: type[VkparError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_folder(write(tmp_path, MODULES, **files))


def test_prompts_and_lower_case_come_before_the_tokenizer(tmp_path: Path) -> None:
    package = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "query", "cat", "Cat"])}
    rules = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.pre_tokenizer = package.pre_tokenizers.Whitespace()
    for number, (lower, prompts, ids) in enumerate(
        [
            (False, {}, [3]),
            (True, {}, [2]),
            (False, {"default_prompt_name": "q", "prompts": {"q": "query "}}, [1, 3]),
            (False, {"default_prompt_name": "q", "prompts": {"q": None}}, [3]),
            (False, {"default_prompt_name": None, "prompts": {"q": "query "}}, [3]),
        ]
    ):
        folder = write(
            tmp_path / str(number),
            MODULES,
            sentence_bert_config={"do_lower_case": lower},
            config_sentence_transformers=prompts,
        )
        rules.save(str(folder / "tokenizer.json"))
        file = EncoderFile(folder, read_folder(folder), None)  # type: ignore[arg-type]
        assert file.tokens(["Cat"]) == [ids]


def test_nearest_compares_directions() -> None:
    embeddings = np.array([[3, 0], [1, 1], [0, 0], [0, -2]], np.float32)
    found = nearest(embeddings, np.array([5, 0], np.float32))
    assert [index for index, _ in found] == [0, 1, 2, 3]
    np.testing.assert_allclose([cosine for _, cosine in found], [1, 0.5**0.5, 0, 0], rtol=1e-6)
