// Passes over the rows of a sparse matrix for the set-up of multigrid: the loops of numba_aggregation.py on devices.
//
// `offset` is the column of the diagonal entry of row 0. Passes that select entries are made twice: with `lengths`, to
// count the entries of each row, and with `to_starts`, to copy them.
//
// compile-after: ../operators/csr/entries.cu
// compile-with: -DELEMENT=0
// compile-with: -DELEMENT=3

// Where most rows have nothing to do, the threads of a row take GROUP rows one after the other, as in device_rows.py; at
// the same time, the threads of a warp have consecutive rows.
#define GROUP 8
#define ROW_OF_GROUP(n) ((static_cast<Long>(blockIdx.x) * GROUP + (n)) * blockDim.y + threadIdx.y)

extern "C" __global__ void extreme_sizes(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, double infinity, double* largest, double* smallest)
{
    const Long row = ROW, end = row < rows ? starts[row + 1] : 0;
    double most = 0, least = infinity;
    for (Long k = row < rows ? starts[row] + LANE : 0; k < end; k += LANES)
        if (columns[k] != row + offset) {
            const double size = modulus(values[k]);
            if (size > most) most = size;
            if (size > 0 && size < least) least = size;
        }
    for (int distance = LANES / 2; distance; distance /= 2) {
        const double more = from_lane(most, distance), less = from_lane(least, distance);
        if (more > most) most = more;
        if (less < least) least = less;
    }
    if (row < rows && LANE == 0) largest[row] = most, smallest[row] = least;
}

// Return the place after the entries that the threads of a row have chosen, and copy them if there is a target.
__device__ inline Long copied(bool chosen, int column, Element value, Long place, int* to_columns, Element* to)
{
    int before = 0, total = chosen;
    for (int distance = 1; distance < LANES; distance *= 2) {
        const int other = from_lane(total, distance);
        if (LANE & distance) before += other;
        total += other;
    }
    if (chosen && to_columns) to_columns[place + before] = column, to[place + before] = value;
    return place + total;
}

extern "C" __global__ void strong_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* roots, double threshold, Long* lengths, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW, begin = row < rows ? starts[row] : 0, end = row < rows ? starts[row + 1] : 0;
    const Long most = largest_of_warp(end - begin);
    const double own = row < rows ? roots[row + offset] : 0;
    Long place = lengths || row >= rows ? 0 : to_starts[row];
    for (Long k = begin + LANE; k - LANE - begin < most; k += LANES) {
        const int column = k < end ? columns[k] : 0;
        const Element value = k < end ? values[k] : from_real(0);
        const double size = modulus(value);
        const bool strong = column == row + offset || (size > 0 && size >= threshold * (own * roots[column]));
        place = copied(k < end && strong, column, value, place, lengths ? nullptr : to_columns, to);
    }
    if (lengths && row < rows && LANE == 0) lengths[row] = place;
}

// Set `out` to the largest value of the columns of each row that is chosen; no row is empty.
template <typename T>
__device__ inline void set_largest(
    Long rows, const Long* starts, const int* columns, const T* values, const bool* chosen, T* out)
{
    for (int n = 0; n < GROUP; ++n) {
        const Long row = ROW_OF_GROUP(n);
        const bool used = row < rows && chosen[row];
        const Long end = used ? starts[row + 1] : 0;
        T most = used ? values[columns[starts[row]]] : 0;
        for (Long k = used ? starts[row] + LANE : 0; k < end; k += LANES) {
            const T value = values[columns[k]];
            if (value > most) most = value;
        }
        for (int distance = LANES / 2; distance; distance /= 2) {
            const T other = from_lane(most, distance);
            if (other > most) most = other;
        }
        if (used && LANE == 0) out[row] = most;
    }
}

extern "C" __global__ void largest_keys(
    Long, Long rows, const Long* starts, const int* columns, const Key* values, const bool* chosen, Key* out)
{
    set_largest(rows, starts, columns, values, chosen, out);
}

extern "C" __global__ void largest_labels(
    Long, Long rows, const Long* starts, const int* columns, const Long* values, const bool* chosen, Long* out)
{
    set_largest(rows, starts, columns, values, chosen, out);
}

// Set the keys of nodes with neighbours to hashes of their global numbers, the keys of others to `covered`.
extern "C" __global__ void first_keys(
    Long rows, const Long* starts, Long first, Key covered, Key* keys, bool* undecided, bool* changing)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    const Key factors[] = {0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull}, mask = (1ull << 62) - 1;
    Key key = static_cast<Key>(first + row) + 1;
    for (int n = 0; n < 2; ++n) {
        key = key * factors[n] & mask;
        key ^= key >> 31;
    }
    undecided[row] = starts[row + 1] - starts[row] > 1; // a row has its diagonal entry
    changing[row] = true;
    keys[row] = undecided[row] ? key + 1 : covered;
}

// Settle nodes whose largest key within two connections is a root's or their own: they are covered, or roots. Nodes
// whose largest neighbour is settled stop changing. Set `open` if a node remains undecided.
extern "C" __global__ void settle(Long rows, const Key* near, const Key* far, Key covered, Key root, Key* keys,
    bool* undecided, bool* changing, Long* open)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    if (near[row] == covered || near[row] == root) changing[row] = false;
    if (!undecided[row]) return;
    if (far[row] == root || far[row] == keys[row]) {
        keys[row] = far[row] == root ? covered : root;
        undecided[row] = false;
    } else
        *open = 1;
}

// Number the roots in their order; `before` has the number of roots before each node. The label of other nodes is -1.
extern "C" __global__ void label_roots(Long rows, const Long* before, Long first, Long* labels)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    labels[row] = before[row + 1] > before[row] ? first + before[row] : -1;
}

// Set missing labels to the label of the strongest neighbour; among equals to the smallest. Set `open` if a node with
// neighbours remains without a label.
extern "C" __global__ void strongest_labels(Long, Long rows, const Long* starts, const int* columns,
    const Element* values, Long offset, const double* roots, double steps, double shift, const Long* neighbours,
    Long* labels, Long* open)
{
    for (int n = 0; n < GROUP; ++n) {
        const Long row = ROW_OF_GROUP(n);
        const bool used = row < rows && labels[row] < 0;
        const Long begin = used ? starts[row] : 0, end = used ? starts[row + 1] : 0;
        double best = -1;
        Long label = -1;
        for (Long k = begin + LANE; k < end; k += LANES) {
            const int column = columns[k];
            const Long other = neighbours[column];
            if (other < 0 || column == row + offset) continue;
            const double strength = floor(steps * modulus(values[k]) / (roots[row + offset] * roots[column]) + shift);
            if (strength > best || (strength == best && other < label)) best = strength, label = other;
        }
        for (int distance = LANES / 2; distance; distance /= 2) {
            const double strength = from_lane(best, distance);
            const Long other = from_lane(label, distance);
            if (strength > best || (strength == best && other < label)) best = strength, label = other;
        }
        if (!used || LANE) continue;
        labels[row] = label;
        if (label < 0 && end - begin > 1) *open = 1;
    }
}

// Entries of at least the `limits` of their rows; the sum of the others is added to the diagonal, unless this made it
// less than `least` times as large.
extern "C" __global__ void filtered_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* limits, double least, Long* lengths, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW, begin = row < rows ? starts[row] : 0, end = row < rows ? starts[row + 1] : 0;
    const Long most = largest_of_warp(end - begin);
    const double limit = row < rows ? limits[row] : 0;
    Element diagonal = from_real(0), rest = from_real(0);
    for (Long k = begin + LANE; k - LANE - begin < most; k += LANES) {
        const Element value = k < end ? values[k] : from_real(0);
        const bool own = k < end && columns[k] == row + offset;
        const Element weak = own || modulus(value) >= limit ? from_real(0) : value;
        for (int lane = 0; lane < LANES; ++lane) { // in the order of the entries
            rest = plus(rest, element_from_lane(weak, LANE ^ lane));
            diagonal = plus(diagonal, element_from_lane(own ? value : from_real(0), LANE ^ lane));
        }
    }
    const bool filters = real_part(plus(diagonal, rest)) >= least * real_part(diagonal);
    Long place = lengths || row >= rows ? 0 : to_starts[row];
    for (Long k = begin + LANE; k - LANE - begin < most; k += LANES) {
        const int column = k < end ? columns[k] : 0;
        Element value = k < end ? values[k] : from_real(0);
        const double size = modulus(value);
        const bool own = k < end && column == row + offset, kept = size > 0 && !(filters && size < limit);
        if (own && filters) value = plus(value, rest);
        place = copied(own || kept, column, value, place, lengths ? nullptr : to_columns, to);
    }
    if (lengths && row < rows && LANE == 0) lengths[row] = place;
}

__device__ inline bool is_weak(Element value, double limit, double other)
{
    const double size = modulus(value);
    return real_part(value) < 0 && size < limit && size < other;
}

// Weak entries, which are negative and below the limits of their row and their column, with the diagonal that makes rows
// add up to 0; or the other entries, with the diagonal that is left.
extern "C" __global__ void separated_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* limits, Long weak, Long* lengths, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW, begin = row < rows ? starts[row] : 0, end = row < rows ? starts[row + 1] : 0;
    const Long most = largest_of_warp(end - begin);
    const double limit = row < rows ? limits[row + offset] : 0;
    Element rest = from_real(0);
    for (Long k = begin + LANE; k - LANE - begin < most; k += LANES) {
        const int column = k < end ? columns[k] : 0;
        Element value = k < end ? values[k] : from_real(0);
        if (k >= end || column == row + offset || !is_weak(value, limit, limits[column])) value = from_real(0);
        for (int lane = 0; lane < LANES; ++lane) // in the order of the entries
            rest = plus(rest, element_from_lane(value, LANE ^ lane));
    }
    Long place = lengths || row >= rows ? 0 : to_starts[row];
    for (Long k = begin + LANE; k - LANE - begin < most; k += LANES) {
        const int column = k < end ? columns[k] : 0;
        Element value = k < end ? values[k] : from_real(0);
        const bool own = k < end && column == row + offset;
        const bool chosen = modulus(value) > 0 && is_weak(value, limit, limits[column]) == (weak != 0);
        if (own) value = weak ? minus_times(1, rest) : plus(value, rest);
        place = copied(own || (k < end && chosen), column, value, place, lengths ? nullptr : to_columns, to);
    }
    if (lengths && row < rows && LANE == 0) lengths[row] = place;
}

// Set `out` to the entries of the identity minus the matrix with its rows multiplied by `scale`.
extern "C" __global__ void smoothing_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const Element* scale, Element* out)
{
    const Long row = ROW;
    if (row >= rows) return;
    const Element factor = minus_times(1, scale[row]);
    for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES) {
        const Element product = times(factor, values[k]);
        out[k] = columns[k] == row + offset ? plus(product, from_real(1)) : product;
    }
}
