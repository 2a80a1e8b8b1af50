/* The sieve kernel (kernels.h). Each kernels_*.c defines the following for its instruction set, and then includes this
 * file:
 *
 *   KERNEL(name)      the function's name for this set         TARGET        attributes that enable the set
 *   V, V_BYTES        a vector of bytes
 *   v_zero()          all bytes 0                              v_load(p)     V_BYTES bytes at p
 *   v_table(p)        16 bytes at p, as the table t of a look-up
 *   v_look_low(t, x)  t[low nibble of each byte]               v_look_high(t, x)   t[high nibble of each byte]
 *   v_add8(a, b)      saturates                                v_in8(x)      bit j: byte j is not 255
 *   v_zip_low(a, b)   in each 16 bytes: a0 b0 a1 b1 ... a7 b7  v_zip_high(a, b)    a8 b8 ... a15 b15
 *
 * A look-up needs the same nibble of many codes in one vector. But in a column, the 8 bytes of each code are next to
 * each other. So eight vectors at a time are transposed by zips. In each 16-byte lane, the position of a byte has 7
 * bits: 3 bits select the vector, and 4 bits ("within") select the byte within the lane. A zip combines pairs of
 * vectors whose numbers differ in one bit only. It moves that bit to the bottom of "within", and puts the former top
 * bit of "within" in its place:
 *
 *      vector    within           c: which code (c0: which of the two in a lane), p: which byte of the column
 *      c3 c2 c1  c0 p2 p1 p0
 *      c0 c2 c1  p2 p1 p0 c3      after a zip by the first bit
 *      c0 p2 c1  p1 p0 c3 c2                     second
 *      c0 p2 p1  p0 c3 c2 c1                     third
 *      p0 p2 p1  c3 c2 c1 c0                     first: vector = byte of the column, within = code
 */
#include "simd/kernels.h"

#define ZIP(x, bit)                                                                                                    \
    for (int r = 0; r < 8; r++)                                                                                        \
        if (!(r & (bit))) {                                                                                            \
            V a = x[r], b = x[r | (bit)];                                                                              \
            x[r] = v_zip_low(a, b);                                                                                    \
            x[r | (bit)] = v_zip_high(a, b);                                                                           \
        }

static TARGET size_t KERNEL(sieve)(const uint8_t *codes, size_t columns, size_t stride, const uint8_t *lut,
                                   size_t count, uint8_t *in) {
    enum { LANES = V_BYTES / 16, STEP = V_BYTES }; /* 8 vectors are V_BYTES codes of 8 bytes */
    size_t found = 0;
    for (size_t first = 0; first < count; first += STEP) {
        V low = v_zero(), high = v_zero();
        for (size_t c = 0; c < columns; c++) {
            const uint8_t *column = codes + c * stride + first * 8, *tables = lut + c * 256;
            V x[8];
            for (int r = 0; r < 8; r++) x[r] = v_load(column + r * V_BYTES);
            ZIP(x, 4)
            ZIP(x, 2)
            ZIP(x, 1)
            ZIP(x, 4)
            for (int r = 0; r < 8; r++) {
                int byte = (r & 2) << 1 | (r & 1) << 1 | r >> 2;
                low = v_add8(low, v_look_low(v_table(tables + 32 * byte), x[r]));
                high = v_add8(high, v_look_high(v_table(tables + 32 * byte + 16), x[r]));
            }
        }
        for (uint64_t left = v_in8(v_add8(low, high)); left; left &= left - 1) {
            uint32_t bit = (uint32_t)__builtin_ctzll(left), lane = bit >> 4, r = bit >> 1 & 7;
            size_t code = first + r * 2 * LANES + 2 * lane + (bit & 1);
            if (code < count) in[found++] = (uint8_t)code;
        }
    }
    return found;
}
#undef ZIP
