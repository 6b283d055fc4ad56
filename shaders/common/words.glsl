// Functions of words of elements of 8 or 16 bits, of all elements at once. `low` are all bits but the elements' top ones:
// sums and differences of these carry into the top bits alone.
//: sums
int f_sums(int a, int b, int low) { return ((a & low) + (b & low)) ^ ((a ^ b) & ~low); }
//: differences
int f_differences(int a, int b, int low) { return ((a | ~low) - (b & low)) ^ (~(a ^ b) & ~low); }
//: below
int f_below(int a, int b, int low) { return (~a & b) | (~(a ^ b) & ~((a | ~low) - (b & low))); }  // in the top bits
//: truths
int f_truths(int tops) { return (tops >> 7) & 0x01010101; }
//: holds
int f_holds(int x) { return ((x & 0x7F7F7F7F) + 0x7F7F7F7F) | x; }  // in the top bits, of bytes other than 0
//: chosen
int f_chosen(int a, int b, int mask) { return a ^ ((a ^ b) & mask); }

//: add_8
int f_add_8(int a, int b) { return f_sums(a, b, 0x7F7F7F7F); }
//: add_16
int f_add_16(int a, int b) { return f_sums(a, b, 0x7FFF7FFF); }
//: subtract_8
int f_subtract_8(int a, int b) { return f_differences(a, b, 0x7F7F7F7F); }
//: subtract_16
int f_subtract_16(int a, int b) { return f_differences(a, b, 0x7FFF7FFF); }
//: multiply_8
int f_multiply_8(int a, int b) {
    int low = (a * b & 0xFF) | ((a >> 8) * (b >> 8) << 8 & 0xFF00);
    return low | ((a >> 16) * (b >> 16) << 16 & 0xFF0000) | (a >> 24) * (b >> 24) << 24;
}
//: multiply_16
int f_multiply_16(int a, int b) { return (a * b & 0xFFFF) | (a >> 16) * (b >> 16) << 16; }

//: less_uint8
int f_less_uint8(int a, int b) { return f_truths(f_below(a, b, 0x7F7F7F7F)); }
//: less_int8
int f_less_int8(int a, int b) { return f_less_uint8(a ^ ~0x7F7F7F7F, b ^ ~0x7F7F7F7F); }
//: less_uint16
int f_less_uint16(int a, int b) { return (f_below(a, b, 0x7FFF7FFF) >> 15) & 0x00010001; }
//: less_int16
int f_less_int16(int a, int b) { return f_less_uint16(a ^ ~0x7FFF7FFF, b ^ ~0x7FFF7FFF); }
//: less_equal_uint8
int f_less_equal_uint8(int a, int b) { return f_less_uint8(b, a) ^ 0x01010101; }
//: less_equal_int8
int f_less_equal_int8(int a, int b) { return f_less_int8(b, a) ^ 0x01010101; }
//: maximum_uint8
int f_maximum_uint8(int a, int b) { return f_chosen(a, b, f_less_uint8(a, b) * 0xFF); }
//: minimum_uint8
int f_minimum_uint8(int a, int b) { return f_chosen(b, a, f_less_uint8(a, b) * 0xFF); }
//: maximum_int8
int f_maximum_int8(int a, int b) { return f_chosen(a, b, f_less_int8(a, b) * 0xFF); }
//: minimum_int8
int f_minimum_int8(int a, int b) { return f_chosen(b, a, f_less_int8(a, b) * 0xFF); }
//: maximum_uint16
int f_maximum_uint16(int a, int b) { return f_chosen(a, b, f_less_uint16(a, b) * 0xFFFF); }
//: minimum_uint16
int f_minimum_uint16(int a, int b) { return f_chosen(b, a, f_less_uint16(a, b) * 0xFFFF); }
//: maximum_int16
int f_maximum_int16(int a, int b) { return f_chosen(a, b, f_less_int16(a, b) * 0xFFFF); }
//: minimum_int16
int f_minimum_int16(int a, int b) { return f_chosen(b, a, f_less_int16(a, b) * 0xFFFF); }

//: not_equal_8
int f_not_equal_8(int a, int b) { return f_truths(f_holds(a ^ b)); }
//: equal_8
int f_equal_8(int a, int b) { return f_truths(~f_holds(a ^ b)); }
//: logical_and_8
int f_logical_and_8(int a, int b) { return f_truths(f_holds(a) & f_holds(b)); }
//: logical_or_8
int f_logical_or_8(int a, int b) { return f_truths(f_holds(a | b)); }
//: logical_xor_8
int f_logical_xor_8(int a, int b) { return f_truths(f_holds(a) ^ f_holds(b)); }
//: logical_equal_8
int f_logical_equal_8(int a, int b) { return f_truths(~(f_holds(a) ^ f_holds(b))); }
