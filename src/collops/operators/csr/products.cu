// Products of sparse matrices on devices, row by row with tables of hashed columns.
//
// A product is made in two phases. The first counts the columns of each row; after a sum over the lengths, the second
// adds up the values [Nagasaka et al. 2017]. A row has a table, in shared memory or with SHARED=0, of any size, in
// global memory. To count, the threads of a row take different entries of the left matrix. To add, either one thread
// adds up a row alone, without atomic operations and without waiting; or several threads take the entries of the left
// matrix one by one, and different columns of the right matrix. In both ways each sum has the order of the left row: the
// same bits in every run, and as on hosts.
//
// Where `right_starts` is null, row j of the right matrix has one entry at most, at place j: column -1 if it has none.
//
// compile-after: entries.cu
// compile-with: -DELEMENT=1
// compile-with: -DELEMENT=2
// compile-with: -DELEMENT=3 -DSHARED=0

#ifndef SHARED
#define SHARED 1
#endif

#define FREE (-1) // no column
#define AHEAD 4   // products that a thread prepares before it adds them

// A hash table of the columns of a row: the columns at their places, their number, the columns in any order, and the
// number of columns up to which it is used.
struct Table {
    volatile int* keys;
    int* count;
    int* found;
    unsigned mask;
    int capacity;
};

__device__ inline unsigned first_place(const Table& table, int column)
{
    const unsigned hash = static_cast<unsigned>(column) * 2654435761u;
    return (hash ^ hash >> 15) & table.mask;
}

// Return the place of a column, and whether it is new. The table must not be full.
__device__ inline unsigned place_of(const Table& table, int column, bool& fresh)
{
    for (unsigned place = first_place(table, column);; place = (place + 1) & table.mask) {
        int key = table.keys[place];
        if (key == FREE) key = atomicCAS(const_cast<int*>(table.keys) + place, FREE, column);
        fresh = key == FREE;
        if (fresh) table.found[atomicAdd(table.count, 1)] = column;
        if (fresh || key == column) return place;
    }
}

// Return the table of this thread's row, without entries; all threads of a warp come here, and some may have no row. In
// global memory, the table of row number `i` has the places from starts[i]. Shared memory has `slots` values of `size`
// bytes for each row of the block, the numbers of columns, and the tables.
extern __shared__ double shared_memory[];
__device__ inline Table table_of(bool used, Long i, int slots, int size, const Long* starts, int* keys, int* found)
{
#if SHARED
    const int capacity = slots / 4 * 3, length = slots + capacity + LANES; // other threads may each find one more
    int* const counts = reinterpret_cast<int*>(reinterpret_cast<char*>(shared_memory) + blockDim.y * slots * size);
    int* const places = counts + blockDim.y + threadIdx.y * length;
    const Table table = {places, counts + threadIdx.y, places + slots, static_cast<unsigned>(slots) - 1, capacity};
#else
    const int capacity = static_cast<int>(starts[i + 1] - starts[i]);
    int* const counts = reinterpret_cast<int*>(shared_memory);
    const Table table = {
        keys + starts[i], counts + threadIdx.y, found + starts[i], static_cast<unsigned>(capacity) - 1, capacity};
#endif
    if (used) {
        for (unsigned place = LANE; place <= table.mask; place += LANES) table.keys[place] = FREE;
        if (LANE == 0) *table.count = 0;
    }
    synchronize_rows();
    return table;
}

// Set the numbers of columns of rows of a product, or -1 where the table is too small. `names` are the row numbers, if
// not all rows are meant.
extern "C" __global__ void count_columns(Long rows, Long slots, const Long* names, const Long* starts,
    const int* columns, const Long* right_starts, const int* right_columns, Long* lengths, const Long* table_starts,
    int* keys, int* found)
{
    const bool used = ROW < rows;
    const Long i = used ? ROW : 0, row = names ? names[i] : i, end = used ? starts[row + 1] : 0;
    const Table table = table_of(used, i, slots, 0, table_starts, keys, found);
    bool fresh;
    for (Long k = starts[row] + LANE; k < end; k += LANES) {
        const int j = columns[k];
        const Long stop = right_starts ? right_starts[j + 1] : j + 1;
        for (Long m = right_starts ? right_starts[j] : j; m < stop; ++m) {
            const int column = right_columns[m];
            if (column != FREE && *static_cast<volatile int*>(table.count) <= table.capacity)
                place_of(table, column, fresh);
        }
    }
    synchronize_rows();
    if (used && LANE == 0) lengths[row] = *table.count <= table.capacity ? *table.count : -1;
}

// The entry of the left matrix at `k`, and where the row of the right matrix begins and ends that it multiplies.
struct Factor {
    Element value;
    Long begin, end;
};
__device__ inline Factor factor_at(
    Long k, Long end, const int* columns, const Element* values, const Long* right_starts)
{
    if (k >= end) return {from_real(0), 0, 0};
    return {values[k], right_starts[columns[k]], right_starts[columns[k] + 1]};
}

// Add products to the sums of a row by a thread alone; return the number of columns so far.
__device__ inline int add_alone(
    const Table& table, Element* sums, int count, const int (&columns)[AHEAD], const Element (&products)[AHEAD])
{
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) {
        if (columns[n] == FREE) continue;
        unsigned place = first_place(table, columns[n]);
        int key = table.keys[place];
        for (; key != FREE && key != columns[n]; key = table.keys[place]) place = (place + 1) & table.mask;
        if (key == FREE) table.keys[place] = table.found[count++] = columns[n];
        sums[place] = key == FREE ? products[n] : plus(sums[place], products[n]);
    }
    return count;
}

// Add up a row by a thread alone; return the number of its columns.
__device__ inline int sum_alone(const Table& table, Element* sums, Long begin, Long end,
    const int* __restrict__ columns, const Element* __restrict__ values, const Long* __restrict__ right_starts,
    const int* __restrict__ right_columns, const Element* __restrict__ right)
{
    int count = 0, found[AHEAD];
    Element products[AHEAD];
    if (!right_starts) {
        for (Long k = begin; k < end; k += AHEAD) {
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                found[n] = k + n < end ? right_columns[columns[k + n]] : FREE;
                products[n] = found[n] == FREE ? from_real(0) : times(values[k + n], right[columns[k + n]]);
            }
            count = add_alone(table, sums, count, found, products);
        }
        return count;
    }
    Factor next = factor_at(begin, end, columns, values, right_starts);
    for (Long k = begin; k < end; ++k) {
        const Factor factor = next;
        next = factor_at(k + 1, end, columns, values, right_starts);
        for (Long m = factor.begin; m < factor.end; m += AHEAD) {
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                found[n] = m + n < factor.end ? right_columns[m + n] : FREE;
                products[n] = found[n] == FREE ? from_real(0) : times(factor.value, right[m + n]);
            }
            count = add_alone(table, sums, count, found, products);
        }
    }
    return count;
}

// Add up rows by several threads each; return the number of columns of this thread's row.
__device__ inline int sum_together(const Table& table, Element* sums, Long begin, Long end,
    const int* __restrict__ columns, const Element* __restrict__ values, const Long* __restrict__ right_starts,
    const int* __restrict__ right_columns, const Element* __restrict__ right)
{
    const Long most = largest_of_warp(end - begin);
    bool fresh = false;
    if (!right_starts) {
        for (Long first = begin; first - begin < most; first += LANES) {
            const Long k = first + LANE;
            const int column = k < end ? right_columns[columns[k]] : FREE;
            const Element product = column == FREE ? from_real(0) : times(values[k], right[columns[k]]);
            const unsigned place = column == FREE ? 0 : place_of(table, column, fresh);
            if (column != FREE && fresh) sums[place] = from_real(0);
            for (int lane = 0; lane < LANES; ++lane) {
                synchronize_rows();
                if (column != FREE && lane == LANE) sums[place] = plus(sums[place], product);
            }
        }
    } else {
        Factor next = factor_at(begin, end, columns, values, right_starts);
        for (Long k = begin; k - begin < most; ++k) {
            const Factor factor = next;
            next = factor_at(k + 1, end, columns, values, right_starts);
            for (Long m = factor.begin + LANE; m < factor.end; m += LANES) {
                const Element product = times(factor.value, right[m]);
                const unsigned place = place_of(table, right_columns[m], fresh);
                sums[place] = fresh ? product : plus(sums[place], product);
            }
            synchronize_rows();
        }
    }
    synchronize_rows();
    return *table.count;
}

// Set rows of a product whose columns fit into their tables, in the order of the columns.
extern "C" __global__ void fill_rows(Long rows, Long slots, const Long* names, const Long* starts, const int* columns,
    const Element* values, const Long* right_starts, const int* right_columns, const Element* right,
    const Long* to_starts, int* to_columns, Element* to, const Long* table_starts, int* keys, int* found,
    Element* all_sums)
{
    const bool used = ROW < rows;
    const Long i = used ? ROW : 0, row = names ? names[i] : i;
    const Long begin = starts[row], end = used ? starts[row + 1] : begin;
    const Table table = table_of(used, i, slots, sizeof(Element), table_starts, keys, found);
#if SHARED
    Element* const sums = reinterpret_cast<Element*>(shared_memory) + threadIdx.y * slots;
#else
    Element* const sums = all_sums + table_starts[i];
#endif
    const int count = LANES == 1
        ? sum_alone(table, sums, begin, end, columns, values, right_starts, right_columns, right)
        : sum_together(table, sums, begin, end, columns, values, right_starts, right_columns, right);
    if (!used) return;
    for (int n = LANE; n < count; n += LANES) {
        const int column = table.found[n];
        unsigned place = first_place(table, column);
        while (table.keys[place] != column) place = (place + 1) & table.mask;
        Long target = to_starts[row];
        for (int other = 0; other < count; ++other) target += table.found[other] < column;
        to_columns[target] = column;
        to[target] = sums[place];
    }
}
