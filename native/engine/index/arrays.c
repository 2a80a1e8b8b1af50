/* Sizes of the arrays, and opening an index over them. arrays.h describes the layout. */
#include "index/arrays.h"

#include "base/memory.h"

void substrings_fill(struct substring *substring, const struct meta *meta) {
    uint32_t m = meta->tables, first = 0;
    uint64_t place = 0;
    for (uint32_t t = 0; t < m; t++) {
        uint32_t length = meta->covered / m + (t < meta->covered % m);
        uint32_t longest = meta->layout == WH_SINGLE ? substring[0].length : length; /* key of this directory */
        if (t == 0) longest = length;
        uint32_t d = longest < meta->directory_bits ? longest : meta->directory_bits;
        substring[t] = (struct substring){.first = first, .length = length, .directory_bits = d, .directory = place};
        first += length;
        if (meta->layout == WH_MULTI) place += 4 * ((UINT64_C(1) << d) + 1);
        else if (!meta->narrow) place += 4;
    }
}

void arrays_sizes(const struct meta *meta, uint64_t size[WH_ARRAYS]) {
    uint64_t n = meta->n, rows = meta->rows, b = code_bytes_of(meta->bits), m = meta->tables;
    uint64_t width = bytes_of_number(n);
    uint64_t blocks = (rows + WH_BLOCK_CODES - 1) / WH_BLOCK_CODES;
    size[WH_META] = sizeof(struct meta) + 2 * (uint64_t)meta->bits;
    size[WH_CODES] = blocks * quads_of(meta->bits) * QUAD_BYTES;
    size[WH_IDS] = n && meta->id_bytes ? n * meta->id_bytes + 8 : 0;
    size[WH_GROUPS] = rows < n ? (rows + 1) * width + 8 : 0;
    size[WH_POSTINGS] = m && rows ? m * rows * width + 8 : 0;
    size[WH_ENTRIES] = m && meta->buckets == WH_FAST ? m * rows * b + 8 : 0;
    size[WH_DIRECTORY] = 0;
    if (m == 0) return;
    uint32_t longest = meta->covered / (uint32_t)m + (meta->covered % m != 0);
    uint32_t shortest = meta->covered / (uint32_t)m;
    uint64_t longer = meta->covered % m, d = meta->directory_bits;
    uint64_t places = UINT64_C(1) << (longest < d ? longest : d);
    uint64_t places_short = UINT64_C(1) << (shortest < d ? shortest : d);
    if (meta->layout == WH_MULTI) size[WH_DIRECTORY] = 4 * (longer * (places + 1) + (m - longer) * (places_short + 1));
    else if (meta->narrow) size[WH_DIRECTORY] = places * narrow_record_bytes(meta->tables);
    else size[WH_DIRECTORY] = 4 * (places * m + 1);
}

uint32_t meta_check(const uint8_t *meta, size_t size) {
    uint64_t hash = size;
    for (size_t at = 0; at < size; at++) {
        uint8_t byte = at - offsetof(struct meta, check) < 4 ? 0 : meta[at];
        hash = (hash ^ byte) * UINT64_C(0x100000001B3);
    }
    return (uint32_t)(hash ^ hash >> 32);
}

static int meta_is_sound(const struct meta *meta) {
    uint32_t m = meta->tables;
    if (meta->bits < 1 || meta->bits > WH_MAX_BITS || meta->n > UINT32_MAX || meta->rows > meta->n) return 0;
    if ((meta->rows == 0) != (meta->n == 0) || (meta->rows < meta->n && meta->id_bytes == 0)) return 0;
    if (meta->covered < 1 || meta->covered > meta->bits) return 0;
    if (m > meta->covered || (m && (meta->covered + m - 1) / m > WH_MAX_SUBSTRING_BITS)) return 0;
    if (meta->layout > WH_SINGLE || meta->buckets > WH_FAST || meta->reordered > 1 || meta->narrow > 1) return 0;
    if (meta->narrow && meta->layout != WH_SINGLE) return 0;
    if (meta->id_bytes > 8) return 0;
    return meta->directory_bits >= 1 && meta->directory_bits <= 31;
}

int wh_index_open(const struct wh_arrays *arrays, wh_index **out) {
    struct meta meta;
    uint64_t size[WH_ARRAYS];
    if (arrays->size[WH_META] < sizeof meta || arrays->data[WH_META] == NULL) return WH_CORRUPT;
    memcpy(&meta, arrays->data[WH_META], sizeof meta);
    if (memcmp(meta.magic, "WHAM", 4) != 0) return WH_CORRUPT;
    if (meta.format != WH_FORMAT) return WH_VERSION;
    if (!meta_is_sound(&meta)) return WH_CORRUPT;
    arrays_sizes(&meta, size);
    if (arrays->size[WH_META] != size[WH_META] || meta.check != meta_check(arrays->data[WH_META], size[WH_META]))
        return WH_CORRUPT;
    for (int a = 0; a < WH_ARRAYS; a++)
        if (arrays->size[a] != size[a] || (size[a] && arrays->data[a] == NULL)) return WH_CORRUPT;

    wh_index *index = wh_calloc(1, sizeof *index);
    uint16_t *frequency = wh_malloc(sizeof *frequency * meta.bits);
    struct substring *substring = wh_calloc(meta.tables ? meta.tables : 1, sizeof *substring);
    if (!index || !frequency || !substring) {
        wh_free(index);
        wh_free(frequency);
        wh_free(substring);
        return WH_MEMORY;
    }
    index->meta = meta;
    index->code_bytes = code_bytes_of(meta.bits);
    index->block_bytes = quads_of(meta.bits) * QUAD_BYTES;
    index->planes = planes_of(meta.bits);
    index->blocks_count = (size_t)((meta.rows + WH_BLOCK_CODES - 1) / WH_BLOCK_CODES);
    index->record_bytes = record_bytes_of(&meta);
    index->codes = arrays->data[WH_CODES];
    index->ids = arrays->data[WH_IDS];
    index->groups = size[WH_GROUPS] ? arrays->data[WH_GROUPS] : NULL;
    index->place_bytes = bytes_of_number(meta.n);
    index->place_mask = mask_of_bytes(index->place_bytes);
    index->id_mask = mask_of_bytes(meta.id_bytes);
    index->directory = arrays->data[WH_DIRECTORY];
    index->postings = arrays->data[WH_POSTINGS];
    index->entries = size[WH_ENTRIES] ? arrays->data[WH_ENTRIES] : NULL;
    memcpy(frequency, (const uint8_t *)arrays->data[WH_META] + sizeof meta, sizeof *frequency * meta.bits);
    index->frequency = frequency;
    substrings_fill(substring, &meta);
    index->substring = substring;
    *out = index;
    return WH_OK;
}

void wh_index_close(wh_index *index) {
    if (!index) return;
    wh_free(index->frequency);
    wh_free(index->substring);
    wh_free(index);
}

void wh_index_describe(const wh_index *index, struct wh_index_info *info) {
    const struct meta *meta = &index->meta;
    *info = (struct wh_index_info){
        .n = meta->n,
        .rows = meta->rows,
        .bits = meta->bits,
        .tables = meta->tables,
        .covered = meta->covered,
        .layout = meta->layout,
        .buckets = meta->buckets,
        .reordered = meta->reordered,
        .id_bytes = meta->id_bytes,
        .place_bytes = index->place_bytes,
    };
}

int wh_index_codes(const wh_index *index, const uint64_t *rows, size_t count, uint8_t *codes) {
    enum { FETCH_AHEAD = 16 };
    const size_t bytes = index->code_bytes;
    for (size_t i = 0; i < count; i++) {
        if (i + FETCH_AHEAD < count) fetch_code(index, rows[i + FETCH_AHEAD]);
        if (rows[i] >= index->meta.rows) return WH_CORRUPT;
        uint8_t code[CODE_ROOM];
        copy_code(index, rows[i], code);
        memcpy(codes + i * bytes, code, bytes);
    }
    return WH_OK;
}
