"""Changes of an encoded request that a Protobuf library does not make: wrong, repeated, endless and unknown fields."""

import struct

from google.protobuf.descriptor import FieldDescriptor

VARINT, I64, LEN, GROUP, END, I32 = range(6)
KINDS = {FieldDescriptor.TYPE_DOUBLE: I64, FieldDescriptor.TYPE_FIXED64: I64, FieldDescriptor.TYPE_SFIXED64: I64}
KINDS |= {FieldDescriptor.TYPE_FIXED32: I32, FieldDescriptor.TYPE_STRING: LEN, FieldDescriptor.TYPE_BYTES: LEN}
KINDS |= {FieldDescriptor.TYPE_MESSAGE: LEN}
NUMBERS = [0, 1, 2, 3, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
DOUBLES = [float("nan"), float("inf"), -float("inf"), 5e-324, -0.0, -1.0, 1e-300, 1e19, 1e308, -1e308]
TEXTS = [b"", b"\x00", b"a\x00b", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "\u2028é😀".encode()]
TEXTS += [b"x" * 1025, b"x" * 40_000, b"nan", b"-1", b"[" * 300, b'{"a":' * 300]
TAGS = [2**29 - 1, 19_000, 127, 40, 0]


def varint(number, longer=0):
    """The bytes of a number, with that many bytes more than it needs."""
    data = bytearray()
    while number >= 128:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    for _ in range(longer):
        data[-1] |= 128
        data.append(0)
    return bytes(data)


def field(number, kind, value, longer=0):
    """One encoded field; `value` is a number for a varint and bytes for all other kinds."""
    if kind == VARINT:
        value = varint(value, longer)
    elif kind == LEN:
        value = varint(len(value), longer) + value
    return varint(number << 3 | kind) + value


def odd_value(chance, of):
    """A value of the field's type that few senders send."""
    kind = KINDS.get(of.type, VARINT)
    if of.message_type:
        return kind, b"" if chance.random() < 0.5 else odd_field(chance, chance.choice(of.message_type.fields))
    if kind == LEN:
        return kind, chance.choice(TEXTS)
    if kind == I32:
        return kind, struct.pack("<I", chance.choice(NUMBERS) % 2**32)
    if kind == I64:
        is_double = of.type == FieldDescriptor.TYPE_DOUBLE
        return kind, struct.pack("<d", chance.choice(DOUBLES)) if is_double else struct.pack(
            "<Q", chance.choice(NUMBERS)
        )
    return kind, chance.choice(NUMBERS)


def odd_field(chance, of):
    """A field of a message, encoded with an odd value, length or wire type."""
    kind, value = odd_value(chance, of)
    if chance.random() < 0.1:
        kind, value = chance.choice([(VARINT, 5), (I64, b"\x00" * 8), (LEN, b"hi"), (I32, b"\x00" * 4)])
    return field(of.number, kind, value, chance.choice([0, 0, 0, 1, 3, 9]) if chance.random() < 0.2 else 0)


def unknown(chance):
    """A field that OTLP does not have."""
    tag = chance.choice(TAGS)
    inside = field(1, VARINT, 1) * chance.randrange(3)
    group = varint(tag << 3 | GROUP) + inside + varint(tag << 3 | END) * (chance.random() < 0.9)
    return chance.choice([group, field(tag, VARINT, 2**64 - 1), field(tag, LEN, b"\xff" * 9), varint(tag << 3 | 7)])


def nested(chance, of):
    """An attribute's value that has values in values, 2 to 200 deep."""
    value, lists = field(3, VARINT, 1), chance.random() < 0.5
    for _ in range(chance.choice([1, 2, 10, 40, 60, 95, 200])):
        value = field(5, LEN, field(1, LEN, value)) if lists else field(6, LEN, field(1, LEN, field(2, LEN, value)))
    return value


def changed(chance, message):
    """The message's bytes with one change in one of the messages inside it."""
    places = list(_messages(message))
    at = chance.choice(places)
    return _encoded(chance, message, at)


def _messages(message):
    yield message
    for of, value in message.ListFields():
        if of.message_type:
            for inner in value if of.is_repeated else [value]:
                yield from _messages(inner)


def _encoded(chance, message, at):
    """Encode like Protobuf, and change the message that is `at` and no other."""
    parts = []
    for of, value in message.ListFields():
        for inner in value if of.is_repeated else [value]:
            if of.message_type:
                parts.append((of, field(of.number, LEN, _encoded(chance, inner, at))))
            elif not of.is_repeated:
                alone = type(message)()
                setattr(alone, of.name, value)
                parts.append((of, alone.SerializeToString()))
        if of.is_repeated and not of.message_type:
            alone = type(message)()
            getattr(alone, of.name).extend(value)
            parts.append((of, alone.SerializeToString()))
    encoded = [part for _, part in parts]
    if message is not at:
        return b"".join(encoded)
    descriptor = message.DESCRIPTOR
    match chance.randrange(7):
        case 0:  # an odd value in place of a field
            of = chance.choice(descriptor.fields)
            encoded = [part for known, part in parts if known is not of or (of.is_repeated and chance.random() < 0.5)]
            encoded.append(odd_field(chance, of))
        case 1:  # an odd value before or behind a field
            encoded.insert(chance.choice([0, len(encoded)]), odd_field(chance, chance.choice(descriptor.fields)))
        case 2 if encoded:  # a field again and again
            part = chance.choice(encoded)
            encoded += [part] * min(chance.choice([1, 1, 2, 40, 1100]), 60_000 // (len(part) + 1))
        case 3:
            encoded.insert(chance.randrange(len(encoded) + 1), unknown(chance))
        case 4 if encoded:  # a length beyond or inside its field
            data = bytearray(encoded.pop(index := chance.randrange(len(encoded))))
            data[1 if len(data) > 1 else 0] ^= 1 << chance.randrange(8)
            encoded.insert(index, bytes(data))
        case 5 if descriptor.name == "AnyValue":
            encoded = [nested(chance, descriptor)]
        case _:
            chance.shuffle(encoded)
            del encoded[chance.randrange(len(encoded) + 1) :]
    return b"".join(encoded)
