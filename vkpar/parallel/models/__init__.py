"""Whole models, from a file to tokens or embeddings."""

from __future__ import annotations

from vkpar.parallel.models.bert import Bert
from vkpar.parallel.models.bert_config import BertConfig
from vkpar.parallel.models.config import Config
from vkpar.parallel.models.encoding import EncoderFile, nearest, open_encoder
from vkpar.parallel.models.generating import Generation
from vkpar.parallel.models.llama import Llama
from vkpar.parallel.models.opening import SPLITS, ModelFile, open_model
from vkpar.parallel.models.sampling import Sampling, Text
from vkpar.parallel.models.texts import Texts
from vkpar.parallel.models.tokens import Tokenizer, parse_ids

__all__ = [
    "SPLITS",
    "Bert",
    "BertConfig",
    "Config",
    "EncoderFile",
    "Generation",
    "Llama",
    "ModelFile",
    "Sampling",
    "Text",
    "Texts",
    "Tokenizer",
    "nearest",
    "open_encoder",
    "open_model",
    "parse_ids",
]
