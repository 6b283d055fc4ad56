"""What a SPIR-V module declares and needs of a device: read from its words, without a compiler and without Vulkan."""

from __future__ import annotations

import functools
import re
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from vkpar.errors import InvalidUsageError
from vkpar.vulkan.pipelines.elements import ANYTHING, BFLOAT16, BYTES, Padded
from vkpar.vulkan.pipelines.opcodes import HEADER, Mark, Op, Storage, fold, scalar, text_of
from vkpar.vulkan.pipelines.push import VECTORS, WORDS, Member

_MAGIC: Final = 0x07230203
_OFFSET: Final = re.compile(r"vkpar_offset_(0|[1-9]\d{0,3})")  # push constants that vkpar fills, by binding
_DEPTH: Final = 8  # of arrays of arrays


@dataclass(frozen=True)
class Entry:
    """A compute entry point.

    Attributes:
        local_size: invocations of a work-group in x, y and z; zeros where the module does not say.
        shared_nbytes: what its shared memory takes, by the values that specialization constants have.
        width_id: the specialization constant that says how many they are in x; None where none does.
    """

    local_size: tuple[int, int, int]
    shared_nbytes: int
    width_id: int | None = None


@dataclass(frozen=True)
class Interface:
    """What a SPIR-V module declares.

    Attributes:
        version: of SPIR-V.
        capabilities: their numbers; see :func:`vkpar.vulkan.pipelines.capabilities.missing`.
        entries: its compute entry points by name.
        bindings: buffer bindings of set 0.
        foreign: what it uses beyond those and push constants, in words; empty where nothing.
        push_nbytes: bytes of its push-constant block.
        readonly: the bindings that it declares it does not write; ``writeonly``: those that it does not read.
        offsets: (binding, byte of the push-constant block) of the members named ``vkpar_offset_<binding>``.
        given_nbytes: bytes of the push-constant block before those, which are its last.
        members: those of the push-constant block but these.
        uniforms: (binding, bytes of the block) of the uniform buffers among the bindings.
        float_atomics: the features of Vulkan that its atomics on floats need.
        elements: (binding, codes for :func:`vkpar.vulkan.pipelines.elements.takes`) of those that hold numbers.
        padded: (binding, what it holds) of those whose numbers, vectors or columns have gaps between them.
    """

    version: tuple[int, int]
    capabilities: frozenset[int]
    entries: dict[str, Entry]
    bindings: frozenset[int]
    foreign: str
    push_nbytes: int
    readonly: frozenset[int] = frozenset()
    writeonly: frozenset[int] = frozenset()
    offsets: tuple[tuple[int, int], ...] = ()
    given_nbytes: int = 0
    members: tuple[Member, ...] = ()
    uniforms: tuple[tuple[int, int], ...] = ()
    float_atomics: frozenset[str] = frozenset()
    elements: tuple[tuple[int, str], ...] = ()
    padded: tuple[tuple[int, Padded], ...] = ()


@functools.lru_cache(maxsize=64)
def reflect(spirv: bytes) -> Interface:
    """Read a module's interface (SPIR-V specification, section 2.3: a stream of words), once for the same bytes.

    Raises:
        InvalidUsageError: not SPIR-V, or a module that is cut short or contradicts itself where this looks.
    """
    if len(spirv) < 4 * HEADER or len(spirv) % 4 or struct.unpack_from("<I", spirv)[0] != _MAGIC:
        raise InvalidUsageError("not a SPIR-V module: a kernel is GLSL text or SPIR-V bytes")
    try:
        return _Reader(spirv).interface()
    except InvalidUsageError:
        raise
    except (LookupError, ValueError) as error:  # too few words, an id that nothing declares, a broken name
        raise InvalidUsageError("a malformed SPIR-V module") from error


_FLOATS: Final = {"e": 16, "f": 32, "d": 64}
_FLOAT_ATOMICS: Final = {  # how the feature's name ends, and where the pointer stands
    Op.LOAD: ("Atomics", 2),
    Op.STORE: ("Atomics", 0),
    Op.EXCHANGE: ("Atomics", 2),
    Op.FADD: ("AtomicAdd", 2),
    Op.FMIN: ("AtomicMinMax", 2),
    Op.FMAX: ("AtomicMinMax", 2),
}
_BFLOAT16: Final = (16, 0)  # its bits, and the encoding of SPV_KHR_bfloat16
_COMPUTE: Final = 5
_LOCAL_SIZE: Final = 17
_LOCAL_SIZE_ID: Final = 38
_WORKGROUP_SIZE: Final = 25  # a built-in


class _Reader:
    """One pass over the instructions that declare an interface; what they name, they name after its declaration."""

    def __init__(self, spirv: bytes) -> None:
        self._words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
        self._version = (self._words[1] >> 16 & 0xFF, self._words[1] >> 8 & 0xFF)
        self._capabilities: set[int] = set()
        self._entries: dict[str, tuple[int, tuple[int, ...]]] = {}  # function and variables by name
        self._local_sizes: dict[int, tuple[int, int, int]] = {}
        self._functions: set[int] = set()
        self._calls: set[int] = set()
        self._marks: dict[tuple[int, ...], int] = {}  # by target (and member) and decoration
        self._constants: dict[int, int] = {}
        self._composites: dict[int, tuple[int, ...]] = {}
        self._sizes: dict[int, int] = {}  # bytes of each type
        self._vectors: dict[int, int] = {}  # elements of each vector type, of each column of a matrix type
        self._columns: dict[int, int] = {}
        self._arrays: set[int] = set()
        self._codes: dict[int, str] = {}  # of scalar types, in the module struct
        self._elements: dict[int, int] = {}  # types of what vectors, matrices and arrays are made of
        self._bfloats: set[int] = set()
        self._inner: dict[int, tuple[int, int]] = {}  # what vectors and arrays have how many of
        self._members: dict[int, tuple[int, ...]] = {}  # types of the members of each struct type
        self._names: dict[tuple[int, int], str] = {}  # of struct types' members
        self._pointers: dict[int, int] = {}
        self._storages: dict[int, int] = {}  # of pointer types
        self._places: dict[int, int] = {}  # pointers: their types
        self._float_atomics: set[str] = set()
        self._variables: list[tuple[int, int, int]] = []
        self._foreign = ""
        self._read()

    def _read(self) -> None:
        at, opcode = HEADER, 0
        while at < len(self._words):
            count, opcode = self._words[at] >> 16, self._words[at] & 0xFFFF
            if count == 0 or at + count > len(self._words):
                raise ValueError("an instruction that does not fit")
            self._instruction(opcode, self._words[at + 1 : at + count])
            at += count
        if opcode != Op.FUNCTION_END or not self._calls <= self._functions:
            raise ValueError("functions that are cut off")

    def _instruction(self, opcode: int, words: tuple[int, ...]) -> None:
        if opcode == Op.CAPABILITY:
            self._capabilities.add(words[0])
        elif opcode in (Op.ENTRY, Op.MODE, Op.MODE_ID):
            self._entry(opcode, words)
        elif opcode == Op.MEMBER_NAME:
            self._names[words[0], words[1]] = text_of(words[2:])[0]
        elif opcode in (Op.DECORATE, Op.MEMBER_DECORATE):
            place = 2 if opcode == Op.DECORATE else 3
            self._marks[words[:place]] = words[place] if len(words) > place else 1
        elif opcode in Op.TYPES:
            self._type(opcode, words[0], words[1:])
        elif opcode in Op.TRUTHS or Op.CONSTANT <= opcode <= Op.SPEC_OP:
            self._constant(opcode, words)
        elif opcode == Op.VARIABLE:
            self._variables.append((words[0], words[1], words[2]))
            self._places[words[1]] = words[0]
        elif opcode in (Op.ACCESS, Op.IN_BOUNDS_ACCESS, Op.PARAMETER):
            self._places[words[1]] = words[0]
        elif opcode in _FLOAT_ATOMICS:
            self._atomic(opcode, words)
        elif opcode == Op.FUNCTION:
            self._functions.add(words[1])
        elif opcode == Op.CALL:
            self._calls.add(words[2])

    def _entry(self, opcode: int, words: tuple[int, ...]) -> None:
        if opcode == Op.ENTRY and words[0] == _COMPUTE:
            name, taken = text_of(words[2:])
            self._entries[name] = (words[1], words[2 + taken :])
        elif opcode == Op.MODE and words[1] == _LOCAL_SIZE:
            self._local_sizes[words[0]] = (words[2], words[3], words[4])
        elif opcode == Op.MODE_ID and words[1] == _LOCAL_SIZE_ID:
            self._foreign = "LocalSizeId (compile for Vulkan 1.2)"

    def _constant(self, opcode: int, words: tuple[int, ...]) -> None:
        if opcode in (Op.CONSTANT, Op.SPEC_CONSTANT):
            self._constants[words[1]] = words[2] | (words[3] << 32 if len(words) > 3 else 0)
        elif opcode in (Op.COMPOSITE, Op.SPEC_COMPOSITE):
            self._composites[words[1]] = words[2:]
        elif opcode in Op.TRUTHS:
            self._constants[words[1]] = int(opcode in Op.TRUE)
        elif opcode == Op.SPEC_OP:
            self._constants[words[1]] = fold(words[2], [self._constants.get(word, 0) for word in words[3:]])

    def _atomic(self, opcode: int, words: tuple[int, ...]) -> None:
        """Note the feature that an atomic needs whose operand may be a float."""
        ending, at = _FLOAT_ATOMICS[opcode]
        pointer = self._places.get(words[at], 0)
        code = self._codes.get(self._pointers.get(pointer, 0), "")
        if code in _FLOATS:
            where = "Shared" if self._storages[pointer] == Storage.WORKGROUP else "Buffer"
            self._float_atomics.add(f"shader{where}Float{_FLOATS[code]}{ending}")

    def _type(self, opcode: int, kind: int, words: tuple[int, ...]) -> None:
        size = 0
        if opcode in (Op.INT, Op.FLOAT):
            size = words[0] // 8
            self._codes[kind] = scalar(opcode, words)
            if opcode == Op.FLOAT and words == _BFLOAT16:
                self._bfloats.add(kind)
        elif opcode == Op.BOOL:
            size = 4
        elif opcode in (Op.VECTOR, Op.MATRIX):
            size = self._sizes[words[0]] * words[1]
            if opcode == Op.VECTOR:
                self._inner[kind] = (words[0], words[1])
            self._vectors[kind] = words[1] if opcode == Op.VECTOR else self._vectors[words[0]]
            self._columns[kind] = words[1]
        elif opcode == Op.ARRAY:
            stride = self._marks.get((kind, Mark.ARRAY_STRIDE)) or self._sizes[words[0]]
            self._inner[kind] = (words[0], self._constants[words[1]])
            size = stride * self._constants[words[1]]
        elif opcode == Op.STRUCT:
            self._members[kind] = words
            size = self._struct_size(kind, words)
        elif opcode in (Op.POINTER, Op.FORWARD_POINTER):
            size = 8
        if opcode == Op.POINTER:
            self._pointers[kind], self._storages[kind] = words[1], words[0]
        if opcode in (Op.ARRAY, Op.RUNTIME_ARRAY):
            self._arrays.add(kind)
        if opcode in (Op.VECTOR, Op.MATRIX, Op.ARRAY, Op.RUNTIME_ARRAY):
            self._elements[kind] = words[0]
        self._sizes[kind] = size

    def _struct_size(self, kind: int, members: tuple[int, ...]) -> int:
        end = size = 0
        for index, member in enumerate(members):
            nbytes = self._sizes[member]
            stride = self._marks.get((kind, index, Mark.MATRIX_STRIDE))
            if stride and member in self._columns:
                rows = (kind, index, Mark.ROW_MAJOR) in self._marks
                nbytes = stride * (self._vectors if rows else self._columns)[member]
            end = self._marks.get((kind, index, Mark.OFFSET), end) + nbytes
            size = max(size, end)
        return size

    def interface(self) -> Interface:
        bindings, push, offsets, given = set(), 0, {}, 0
        written, read, members = set(), set(), list[Member]()
        uniforms: dict[int, int] = {}
        elements: dict[int, str] = {}
        padded: dict[int, set[Padded | None]] = defaultdict(set)
        for pointer, variable, storage in self._variables:
            kind = self._pointers[pointer]
            if storage == Storage.PUSH:
                push = max(push, self._sizes[kind])
                block, before = self._offsets(kind)
                offsets.update(block)
                given = max(given, before)
                members += self._members_of(kind)
            elif storage in (Storage.BUFFER, Storage.UNIFORM, Storage.UNIFORM_CONSTANT):
                self._foreign = self._foreign or self._foreign_buffer(kind, variable, storage)
                binding = self._marks.get((variable, Mark.BINDING), 0)
                bindings.add(binding)
                elements[binding] = elements.get(binding, "") + self._scalars(kind)
                padded[binding].add(self._padded(kind))
                if storage == Storage.UNIFORM and (kind, Mark.BUFFER_BLOCK) not in self._marks:
                    uniforms[binding] = max(uniforms.get(binding, 0), self._sizes[kind])
                elif not self._is(Mark.NON_WRITABLE, variable, kind):
                    written.add(binding)
                if not self._is(Mark.NON_READABLE, variable, kind):
                    read.add(binding)
        return Interface(
            version=self._version,
            capabilities=frozenset(self._capabilities),
            entries={name: self._made_entry(*entry) for name, entry in self._entries.items()},
            bindings=frozenset(bindings),
            foreign=self._foreign,
            push_nbytes=push,
            readonly=frozenset(bindings - written),
            writeonly=frozenset(bindings - read),
            offsets=tuple(sorted(offsets.items())),
            given_nbytes=given,
            members=tuple(members),
            uniforms=tuple(sorted(uniforms.items())),
            float_atomics=frozenset(self._float_atomics),
            elements=tuple((number, codes) for number, codes in sorted(elements.items()) if ANYTHING not in codes),
            padded=tuple((number, each) for number, (each, *others) in sorted(padded.items()) if each and not others),
        )

    def _scalars(self, block: int) -> str:
        """Return the codes of the types that a block holds: ANYTHING for structs; bytes, too, for several members."""
        members, codes = self._members.get(block, ()), ""
        for member in members:
            kind = member
            for _ in range(_DEPTH):
                kind = self._elements.get(kind, kind)
            codes += BFLOAT16 if kind in self._bfloats else self._codes.get(kind) or ANYTHING
        return codes + BYTES if len(members) > 1 else codes or ANYTHING

    def _padded(self, block: int) -> Padded | None:
        """Return what a block of one member holds, where gaps follow each; None elsewhere."""
        members = self._members.get(block, ())
        kind, count, stride = members[0] if len(members) == 1 else 0, 0, 0
        for _ in range(_DEPTH):
            if kind not in self._vectors:
                stride = self._marks.get((kind, Mark.ARRAY_STRIDE), stride)
            elif kind in self._inner:
                count = count or self._inner[kind][1]
            else:
                lines = self._columns if (block, 0, Mark.ROW_MAJOR) in self._marks else self._vectors
                count, stride = lines[kind], self._marks.get((block, 0, Mark.MATRIX_STRIDE), 0)
            kind = self._elements.get(kind, kind)
        code, nbytes = self._codes.get(kind, ""), max(count, 1) * self._sizes.get(kind, 0)
        text = f"{VECTORS[code]}{count}" if code and count > 1 else WORDS.get(code, "")
        return Padded(nbytes, stride, text) if text and stride > nbytes else None

    def _is(self, mark: int, variable: int, kind: int) -> bool:
        """Say whether a buffer is declared ``readonly`` or ``writeonly``: the variable, or all members of its block."""
        if (variable, mark) in self._marks:
            return True
        members = range(len(self._members.get(kind, ())))
        return bool(members) and all((kind, member, mark) in self._marks for member in members)

    def _offsets(self, block: int) -> tuple[dict[int, int], int]:
        """Return where a push-constant block takes offsets, by binding, and the bytes before these."""
        found, others = {}, 0
        for index, member in enumerate(self._members.get(block, ())):
            at = self._marks.get((block, index, Mark.OFFSET), 0)
            binding = self._offset_of(block, index)
            if binding is None:
                others = max(others, at + self._sizes[member])
            elif self._codes.get(member, "") not in ("i", "I"):
                raise InvalidUsageError(f"vkpar_offset_{binding} is to be a uint or an int")
            else:
                found[binding] = at
        given = min(found.values(), default=self._sizes[block])
        if others > given:
            raise InvalidUsageError("the members vkpar_offset_<binding> are to be the last of the push constants")
        return found, given

    def _offset_of(self, block: int, index: int) -> int | None:
        """Return the binding whose offset a member of the push constants takes; None for a member of the user's."""
        found = _OFFSET.fullmatch(self._names.get((block, index), ""))
        return int(found[1]) if found else None

    def _members_of(self, block: int) -> list[Member]:
        """Return the members of a push-constant block but those that take offsets."""
        kinds = enumerate(self._members.get(block, ()))
        return [self._member(block, index, kind) for index, kind in kinds if self._offset_of(block, index) is None]

    def _member(self, block: int, index: int, kind: int) -> Member:
        name, word = self._names.get((block, index), ""), ""
        shape, strides = list[int](), list[int]()
        while kind in self._inner:
            element, count = self._inner[kind]
            if len(shape) == _DEPTH:
                raise ValueError("an array of itself")
            if kind in self._vectors:
                word = f"{VECTORS.get(self._codes.get(element, ''), 'vec')}{count}"
            shape.append(count)
            strides.append(self._marks.get((kind, Mark.ARRAY_STRIDE)) or self._sizes[element])
            kind = element
        code = self._codes.get(kind, "")
        dims = "".join(f"[{count}]" for count in (shape[:-1] if word else shape))
        word = word or WORDS.get(code) or ("a matrix" if kind in self._columns else "a struct")
        at = self._marks.get((block, index, Mark.OFFSET), 0)
        return Member(name, f"{word} {name}{dims}", at, code, tuple(shape), tuple(strides))

    def _foreign_buffer(self, kind: int, variable: int, storage: int) -> str:
        """Return why a variable is no plain storage buffer of set 0; nothing where it is one."""
        if storage == Storage.UNIFORM_CONSTANT:
            return "an image, a sampler or a texel buffer"
        if kind in self._arrays:
            return "an array of buffers at one binding"
        in_set = self._marks.get((variable, Mark.SET), 0)
        return f"descriptor set {in_set}" if in_set else ""

    def _made_entry(self, function: int, variables: tuple[int, ...]) -> Entry:
        if function not in self._functions:
            raise ValueError("an entry point without its function")
        # Before SPIR-V 1.4 entry points do not list the shared variables that they use.
        shared = sum(
            self._sizes[self._pointers[pointer]]
            for pointer, variable, storage in self._variables
            if storage == Storage.WORKGROUP and (variable in variables or self._version < (1, 4))
        )
        parts = self._declared_size()
        if parts is None:
            return Entry(self._local_sizes.get(function, (0, 0, 0)), shared)
        x, y, z = (self._constants[part] for part in parts)
        return Entry((x, y, z), shared, self._marks.get((parts[0], Mark.SPEC_ID)))

    def _declared_size(self) -> tuple[int, ...] | None:
        """Return the constants that say how large a work-group is, wherever the module has them."""
        sizes = (made for made in self._composites if self._marks.get((made, Mark.BUILT_IN)) == _WORKGROUP_SIZE)
        return next(map(self._composites.__getitem__, sizes), None)
