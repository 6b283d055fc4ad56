"""Which words each shipped kernel reads, by name: from its module, and from what the host gives it."""

from __future__ import annotations

import re
import struct
from importlib import resources
from typing import Any

from vkpar.abi import arrays, attention, elementwise, experts, matmul, reduce, rows, wire
from vkpar.abi.words import members

_NAME, _MEMBER_NAME, _DECORATE, _TYPE_POINTER, _VARIABLE = 5, 6, 71, 32, 59
_TYPE_VECTOR, _TYPE_ARRAY, _TYPE_STRUCT, _CONSTANT = 23, 28, 30, 43
_SPEC_ID, _PUSH_CONSTANT = 1, 9

MODULES = {
    path.name.removesuffix(".spv"): path
    for path in resources.files("vkpar.spirv").iterdir()
    if path.name.endswith(".spv")
}

# Kernels whose words are generated with them (vkpar/ops/elementwise), and the constant of shaders/common/halfs.glsl.
GENERATED = "each_"
PACKS_HALVES = 2046

_ON_GPUS = (matmul.Product, matmul.Forms)
_OF_EXPERTS = (*_ON_GPUS, matmul.Scales, matmul.Chosen)
_OF_CONSTANTS = (matmul.Operands, matmul.RowsShape, matmul.Turned, matmul.Follows)
_OF_TILES = (matmul.Operands, matmul.CoresShape, matmul.Turned, matmul.Follows, matmul.CoresTail)
_OF_STREAMS = (matmul.Operands, matmul.StreamShape, matmul.Turned, matmul.Follows, matmul.StreamTail)
_OF_BLOCKS = (matmul.Operands, matmul.QuantizedShape, matmul.Turned, matmul.Follows, matmul.PassesTail, matmul.FoldTail)

# In whose place kernels that several kinds of blocks share are told the kind.
_TOLD = {matmul.Operands: matmul.BlockOperands, experts.GroupedConstants: experts.BlockGroupedConstants}

# By kernels' names, the first that fits: the sections of the push block, and of the specialization constants.
BLOCKS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    r"matmul_small_forms_": ((matmul.Small, matmul.SmallForms), ()),
    r"matmul_small_": ((matmul.Small,), ()),
    r"matmul_eights_\w+_biased": ((matmul.Lanes, matmul.LanesBias), (matmul.EightsConstants,)),
    r"matmul_eights_": ((matmul.Lanes,), (matmul.EightsConstants,)),
    r"matmul_narrow_\w+_biased": ((matmul.Lanes, matmul.LanesBias), (matmul.NarrowConstants,)),
    r"matmul_narrow_": ((matmul.Lanes,), (matmul.NarrowConstants,)),
    r"matmul_short_biased": ((matmul.Lanes, matmul.LanesBias), (matmul.ShortConstants,)),
    r"matmul_short_": ((matmul.Lanes,), (matmul.ShortConstants,)),
    r"matvec_steps_": ((matmul.Lanes, matmul.LanesPart), (matmul.StepsConstants,)),
    r"(matmul_wide|matvec_lanes)_": ((matmul.Lanes,), ()),
    r"matmul_finish$": ((matmul.Finish,), (matmul.FinishConstants, matmul.Follows)),
    r"matmul_tiled_forms$": (
        _ON_GPUS,
        (matmul.Operands, matmul.TiledShape, matmul.Turned, matmul.Follows, matmul.TiledTail),
    ),
    r"matmul_tiled$": (
        (matmul.Product,),
        (matmul.Operands, matmul.TiledShape, matmul.Turned, matmul.Follows, matmul.TiledTail),
    ),
    r"matmul_coop_": ((*_ON_GPUS, matmul.Windows), _OF_TILES),
    r"matvec_cores_": (_ON_GPUS, _OF_STREAMS),
    r"matvec_folded_": ((*_ON_GPUS, matmul.Norm), (*_OF_CONSTANTS, matmul.PassesTail, matmul.FoldTail)),
    r"matvec_forms_": (_ON_GPUS, _OF_CONSTANTS),
    r"matvec_send_": ((matmul.Product, matmul.Send), _OF_CONSTANTS),
    r"matvec_": ((matmul.Product,), _OF_CONSTANTS),
    r"quantized_cores_": (
        (*_ON_GPUS, matmul.Scales),
        (*_OF_STREAMS[:-1], matmul.QuantizedCoresTail),
    ),
    r"quantized_(dots|matvec)_folded_": ((*_ON_GPUS, matmul.Scales, matmul.Norm), (*_OF_BLOCKS, matmul.DotsTail)),
    r"quantized_(dots|matvec)_send_": ((*_ON_GPUS, matmul.Scales, matmul.Send), (*_OF_BLOCKS, matmul.DotsTail)),
    r"quantized_(dots|lanes|matvec)_": ((*_ON_GPUS, matmul.Scales), (*_OF_BLOCKS, matmul.DotsTail)),
    r"quantized_pack_": ((arrays.Pack,), (arrays.PackConstants,)),
    r"quantized_unpack_": ((arrays.Unpack,), (arrays.UnpackConstants,)),
    r"expert_few_folded": ((*_OF_EXPERTS, matmul.Norm), _OF_BLOCKS),
    r"expert_few_send_": ((*_OF_EXPERTS, matmul.Send), _OF_BLOCKS),
    r"expert_few": (_OF_EXPERTS, _OF_BLOCKS),
    r"expert_(product|cores)": ((experts.Grouped,), (experts.GroupedConstants,)),
    r"expert_route$": ((experts.Route,), (experts.RouteConstants,)),
    r"expert_router$": ((experts.Router,), (experts.RouterConstants,)),
    r"expert_groups$": ((experts.Groups,), (experts.GroupsConstants,)),
    r"expert_sum$": ((experts.Sum,), (experts.SumConstants,)),
    r"region_": ((arrays.Region,), (arrays.RegionConstants,)),
    r"take_": ((arrays.Take,), ()),
    r"random_": ((arrays.Random,), (arrays.RandomConstants,)),
    r"copy$": ((arrays.Copy,), ()),
    r"add_": ((elementwise.Add,), (elementwise.AddConstants,)),
    r"narrow$": ((elementwise.Narrow,), (elementwise.NarrowConstants,)),
    r"cast_": ((elementwise.Cast,), (elementwise.CastConstants,)),
    r"reduce_units_": ((reduce.Units,), (reduce.UnitsConstants,)),
    r"reduce_rows_": ((reduce.RowsPass, reduce.Ends), (reduce.RowsConstants,)),
    r"reduce_columns_": ((reduce.ColumnsPass, reduce.Ends), (reduce.ColumnsConstants,)),
    r"scan_": ((reduce.Scan,), (reduce.ScanConstants,)),
    r"sort_lanes$": ((reduce.Sort, reduce.SortFirsts), (reduce.SortLanesConstants,)),
    r"sort_": ((reduce.Sort, reduce.SortFirsts), (reduce.SortConstants,)),
    r"topk$": ((reduce.Topk,), (reduce.TopkConstants,)),
    r"scatter_add_": ((reduce.ScatterAdd,), (reduce.ScatterAddConstants,)),
    r"norm_gather_": ((rows.Rows, rows.Gathers), (rows.RowsConstants, rows.NormConstants, rows.GathersConstants)),
    r"norm_grad_": ((rows.Rows,), (rows.RowsConstants, rows.NormGradConstants)),
    r"norm_layer_": ((rows.Rows,), (rows.RowsConstants, rows.NormConstants, rows.MomentConstants)),
    r"norm_": ((rows.Rows,), (rows.RowsConstants, rows.NormConstants)),
    r"softmax_": ((rows.Rows,), (rows.RowsConstants,)),
    r"swiglu_": ((rows.Swiglu,), (rows.SwigluConstants,)),
    r"attention_combine$": ((attention.Combine,), (attention.CombineConstants,)),
    r"attention_cores": ((attention.Attention,), (attention.AttentionConstants, attention.CoresConstants)),
    r"attention_": ((attention.Attention,), (attention.AttentionConstants, attention.LanesConstants)),
    r"rope_append_": ((attention.RopeAppend,), (attention.RopeAppendConstants,)),
    r"rope_": ((attention.Rope,), (attention.RopeConstants,)),
    r"kv_append_": ((attention.Append,), (attention.AppendConstants,)),
    r"wire_gather_": ((wire.Reduce, wire.Adds), (wire.ReduceConstants,)),
    r"wire_reduce_": ((wire.Reduce,), (wire.ReduceConstants,)),
    r"wire_forward_": ((wire.Forward,), (wire.ForwardConstants,)),
    r"slot_check$": ((wire.SlotCheck,), ()),
    r"carry$": ((wire.Carry,), ()),
}


def declared(name: str) -> tuple[list[tuple[str, int]], dict[int, str]]:
    """Return the members of a module's push block and their words, and its specialization constants by number."""
    data = MODULES[name].read_bytes()
    words = struct.unpack(f"<{len(data) // 4}I", data)
    names: dict[int, str] = {}
    members: dict[int, dict[int, str]] = {}
    numbers: dict[int, int] = {}
    pointed: dict[int, int] = {}
    lengths: dict[int, int] = {}  # of vectors and arrays
    structs: dict[int, tuple[int, ...]] = {}
    values: dict[int, int] = {}
    block, at = 0, 5
    while at < len(words):
        length, code = words[at] >> 16, words[at] & 0xFFFF
        given = words[at + 1 : at + length]
        if code == _NAME:
            names[given[0]] = _text(given[1:])
        elif code == _MEMBER_NAME:
            members.setdefault(given[0], {})[given[1]] = _text(given[2:])
        elif code == _DECORATE and given[1] == _SPEC_ID:
            numbers[given[2]] = given[0]
        elif code == _CONSTANT:
            values[given[1]] = given[2]
        elif code == _TYPE_VECTOR:
            lengths[given[0]] = given[2]
        elif code == _TYPE_ARRAY:
            lengths[given[0]] = values.get(given[2], 0)
        elif code == _TYPE_STRUCT:
            structs[given[0]] = given[1:]
        elif code == _TYPE_POINTER:
            pointed[given[0]] = given[2]
        elif code == _VARIABLE and given[2] == _PUSH_CONSTANT:
            block = pointed[given[0]]
        at += length
    found = members.get(block, {})
    # the width of a work-group is a constant without a name of its own
    constants = {number: names.get(given, "threads").lower() for number, given in numbers.items()}
    kinds = structs.get(block, ())
    return [(found[index], lengths.get(kind, 1)) for index, kind in enumerate(kinds)], constants


def _text(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()


def fields(sections: tuple[Any, ...]) -> list[tuple[str, int]]:
    """Return what sections call their members, and the words of each."""
    return [member for section in sections for member in members(section)]


def sections_of(name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the sections of a kernel's push block, and those of its specialization constants."""
    push, constants = next(found for pattern, found in BLOCKS.items() if re.match(pattern, name))
    if "_mixed" in name:  # these are told the kind of blocks
        constants = tuple(_TOLD.get(each, each) for each in constants)
    return push, constants


def pushed(name: str, push: bytes) -> dict[str, int]:
    """Return the words that a kernel is given, by name, of arrays the first; floats as their bits."""
    given, at = {}, 0
    for section in sections_of(name)[0]:
        for member, number in members(section):
            if 4 * at < len(push):
                given[member] = struct.unpack_from("=I", push, 4 * at)[0]
            at += number
    return given


def specialized(name: str, constants: tuple[int, ...]) -> dict[str, int]:
    """Return the constants that a kernel is specialized by, by name."""
    return dict(zip((each for each, _ in fields(sections_of(name)[1])), constants, strict=False))
