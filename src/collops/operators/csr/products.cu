// Products of sparse matrices on devices, row by row with tables of hashed columns.
//
// A product is made in two phases. The first counts the columns of each row; after a sum over the lengths, the second
// adds up the values [Nagasaka et al. 2017]. The threads of a row share its table, in shared memory or with SHARED=0, of
// any size, in global memory. They take the entries of a row of the left matrix one by one, and different columns of the
// right matrix, so that each sum has the order of the left row: the same bits in every run, and as on hosts.
//
// compile-after: entries.cu
// compile-with: -DELEMENT=1
// compile-with: -DELEMENT=2
// compile-with: -DELEMENT=3 -DSHARED=0

#ifndef SHARED
#define SHARED 1
#endif

#define FREE (-1) // no column

// A hash table of the columns of a row: the columns at their places, their number, the columns in any order, and the
// number of columns up to which it is used.
struct Table {
    volatile int* keys;
    int* count;
    int* found;
    unsigned mask;
    int capacity;
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

// Return the table of this thread's row. In global memory, the table of row number `i` has the places from starts[i].
// Shared memory has `slots` values of `size` bytes for each row of the block, the numbers of columns, and the tables.
extern __shared__ double shared_memory[];
__device__ inline Table table_of(Long i, int slots, int size, const Long* starts, int* keys, int* found)
{
#if SHARED
    const int capacity = slots / 4 * 3, length = slots + capacity + LANES; // other threads may each find one more
    int* const counts = reinterpret_cast<int*>(reinterpret_cast<char*>(shared_memory) + blockDim.y * slots * size);
    int* const places = counts + blockDim.y + threadIdx.y * length;
    return {places, counts + threadIdx.y, places + slots, static_cast<unsigned>(slots) - 1, capacity};
#else
    const int capacity = static_cast<int>(starts[i + 1] - starts[i]);
    int* const counts = reinterpret_cast<int*>(shared_memory);
    return {keys + starts[i], counts + threadIdx.y, found + starts[i], static_cast<unsigned>(capacity) - 1, capacity};
#endif
}

// Set the numbers of columns of rows of a product, or -1 where the table is too small. `names` are the row numbers, if
// not all rows are meant.
extern "C" __global__ void count_columns(Long rows, Long slots, const Long* names, const Long* starts,
    const int* columns, const Long* right_starts, const int* right_columns, Long* lengths, const Long* table_starts, int* keys, int* found)
{
    const Long i = ROW;
    if (i >= rows) return;
    const Long row = names ? names[i] : i;
    const Table table = table_of(i, slots, 0, table_starts, keys, found);
    clear(table);
    bool fresh;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const Long end = right_starts[columns[k] + 1];
        for (Long m = right_starts[columns[k]] + LANE; m < end; m += LANES)
            if (*static_cast<volatile int*>(table.count) <= table.capacity) place_of(table, right_columns[m], fresh);
    }
    synchronize_row();
    if (LANE == 0) lengths[row] = *table.count <= table.capacity ? *table.count : -1;
}

// Set rows of a product whose columns fit into their tables, in the order of the columns.
extern "C" __global__ void fill_rows(Long rows, Long slots, const Long* names, const Long* starts, const int* columns,
    const Element* values, const Long* right_starts, const int* right_columns, const Element* right,
    const Long* to_starts, int* to_columns, Element* to, const Long* table_starts, int* keys, int* found, Element* all_sums)
{
    const Long i = ROW;
    if (i >= rows) return;
    const Long row = names ? names[i] : i;
    const Table table = table_of(i, slots, sizeof(Element), table_starts, keys, found);
#if SHARED
    Element* const sums = reinterpret_cast<Element*>(shared_memory) + threadIdx.y * slots;
#else
    Element* const sums = all_sums + table_starts[i];
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
