// Rows of sparse matrices on devices: diagonals, merged blocks, and products row by row with tables of hashed columns.
//
// A product is made in two phases. The first counts the columns of each row; after a sum over the lengths, the second
// adds up the values [Nagasaka et al. 2017]. LANES threads share a row and its table of SLOTS places in shared memory,
// or with SLOTS=0 one of any size in global memory. They take the entries of a row of the left matrix one by one, and
// different columns of the right matrix, so that each sum has the order of the left row: the same bits in every run,
// and as on hosts.
//
// compile-after: entries.cu
// compile-with: -DELEMENT=0 -DLANES=1 -DTHREADS=64 -DSLOTS=32
// compile-with: -DELEMENT=3 -DLANES=8 -DTHREADS=256 -DSLOTS=64
// compile-with: -DELEMENT=1 -DLANES=32 -DTHREADS=32 -DSLOTS=2048
// compile-with: -DELEMENT=2 -DLANES=32 -DTHREADS=256 -DSLOTS=0

#ifndef THREADS
#define THREADS 256
#endif
#ifndef SLOTS
#define SLOTS 0
#endif
#define ROWS_OF_BLOCK (THREADS / LANES)

extern "C" __global__ void diagonal_entries(
    Long rows, const Long* starts, const int* columns, const Element* values, Long offset, Element* out)
{
    const Long row = ROW;
    if (row >= rows) return;
    for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES)
        if (columns[k] == row + offset) out[row] = values[k];
}

extern "C" __global__ void rows_of_entries(Long rows, const Long* starts, int* out)
{
    const Long row = ROW;
    if (row >= rows) return;
    for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES) out[k] = static_cast<int>(row);
}

// `before` columns of the outer block, the `own` columns of the inner block, and the other columns of the outer block.
extern "C" __global__ void merge_rows(Long rows, Long before, Long own, const Long* inner_starts,
    const int* inner_columns, const Element* inner, const Long* outer_starts, const int* outer_columns,
    const Element* outer, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    Long place = to_starts[row], k = outer_starts[row];
    const Long end = outer_starts[row + 1];
    for (; k < end && outer_columns[k] < before; ++k, ++place) to_columns[place] = outer_columns[k], to[place] = outer[k];
    for (Long m = inner_starts[row]; m < inner_starts[row + 1]; ++m, ++place)
        to_columns[place] = static_cast<int>(inner_columns[m] + before), to[place] = inner[m];
    for (; k < end; ++k, ++place) to_columns[place] = static_cast<int>(outer_columns[k] + own), to[place] = outer[k];
}

// Upper bounds of the lengths of some rows of a product.
extern "C" __global__ void bound_lengths(
    Long rows, const Long* names, const Long* starts, const int* columns, const Long* right_starts, Long* bounds)
{
    const Long i = ROW;
    if (i >= rows || LANE) return;
    Long bound = 0;
    for (Long k = starts[names[i]]; k < starts[names[i] + 1]; ++k)
        bound += right_starts[columns[k] + 1] - right_starts[columns[k]];
    bounds[i] = bound;
}

#define FREE (-1) // no column

// A hash table of the columns of a row: the columns at their places, their number, and the columns in any order.
struct Table {
    volatile int* keys;
    int* count;
    int* found;
    unsigned mask;
};

// Return the place of a column, and whether it is new. The table must not be full.
__device__ inline unsigned place_of(const Table& table, int column, bool& fresh)
{
    const unsigned hash = static_cast<unsigned>(column) * 2654435761u;
    for (unsigned place = (hash ^ hash >> 15) & table.mask;; place = (place + 1) & table.mask) {
        int key = table.keys[place];
        if (key == FREE) key = atomicCAS(const_cast<int*>(table.keys) + place, FREE, column);
        fresh = key == FREE;
        if (fresh) table.found[atomicAdd(table.count, 1)] = column;
        if (fresh || key == column) return place;
    }
}

__device__ inline void clear(const Table& table)
{
    for (unsigned place = LANE; place <= table.mask; place += LANES) table.keys[place] = FREE;
    if (LANE == 0) *table.count = 0;
    synchronize_row();
}

// The table of this thread's row, and the number of columns up to which it is used; other threads of the row may each
// add one more. In global memory, the table of row number `i` has the places from table_starts[i].
#if SLOTS
#define CAPACITY (SLOTS / 4 * 3)
#define DECLARE_TABLE(i)                                                                                               \
    __shared__ int all_keys[ROWS_OF_BLOCK * SLOTS], all_found[ROWS_OF_BLOCK * (CAPACITY + LANES)];                     \
    __shared__ int counts[ROWS_OF_BLOCK];                                                                              \
    const int part = threadIdx.x / LANES, capacity = CAPACITY;                                                         \
    const Table table = {                                                                                              \
        all_keys + part * SLOTS, counts + part, all_found + part * (CAPACITY + LANES), SLOTS - 1};
#else
#define DECLARE_TABLE(i)                                                                                               \
    __shared__ int counts[ROWS_OF_BLOCK];                                                                              \
    const int capacity = static_cast<int>(table_starts[(i) + 1] - table_starts[i]);                                    \
    const Table table = {keys + table_starts[i], counts + threadIdx.x / LANES, found + table_starts[i],                \
        static_cast<unsigned>(capacity) - 1};
#endif

// Set the numbers of columns of rows of a product, or -1 where the table is too small. `names` are the row numbers, if
// not all rows are meant.
extern "C" __global__ void count_columns(Long rows, const Long* names, const Long* starts, const int* columns,
    const Long* right_starts, const int* right_columns, Long* lengths, const Long* table_starts, int* keys, int* found)
{
    const Long i = ROW;
    if (i >= rows) return;
    const Long row = names ? names[i] : i;
    DECLARE_TABLE(i)
    clear(table);
    bool fresh;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const Long end = right_starts[columns[k] + 1];
        for (Long m = right_starts[columns[k]] + LANE; m < end; m += LANES)
            if (*static_cast<volatile int*>(table.count) <= capacity) place_of(table, right_columns[m], fresh);
    }
    synchronize_row();
    if (LANE == 0) lengths[row] = *table.count <= capacity ? *table.count : -1;
}

// Set rows of a product whose columns fit into their tables, in the order of the columns.
extern "C" __global__ void fill_rows(Long rows, const Long* names, const Long* starts, const int* columns,
    const Element* values, const Long* right_starts, const int* right_columns, const Element* right, const Long* to_starts,
    int* to_columns, Element* to, const Long* table_starts, int* keys, int* found, Element* all_sums)
{
    const Long i = ROW;
    if (i >= rows) return;
    const Long row = names ? names[i] : i;
    DECLARE_TABLE(i)
#if SLOTS
    __shared__ Real shared_sums[ROWS_OF_BLOCK * SLOTS * (sizeof(Element) / sizeof(Real))];
    Element* sums = reinterpret_cast<Element*>(shared_sums) + part * SLOTS;
#else
    Element* sums = all_sums + table_starts[i];
#endif
    clear(table);
    bool fresh;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const Element factor = values[k];
        const Long end = right_starts[columns[k] + 1];
        for (Long m = right_starts[columns[k]] + LANE; m < end; m += LANES) {
            const unsigned place = place_of(table, right_columns[m], fresh);
            const Element product = times(factor, right[m]);
            sums[place] = fresh ? product : plus(sums[place], product);
        }
        synchronize_row();
    }
    const int count = *table.count;
    for (int n = LANE; n < count; n += LANES) {
        const int column = table.found[n];
        Long place = to_starts[row];
        for (int other = 0; other < count; ++other) place += table.found[other] < column;
        to_columns[place] = column;
        to[place] = sums[place_of(table, column, fresh)];
    }
}
