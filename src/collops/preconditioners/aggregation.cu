// Passes over the rows of a sparse matrix for the set-up of multigrid: the loops of numba_aggregation.py on devices.
//
// `offset` is the column of the diagonal entry of row 0. Passes that select entries are made twice: with `lengths`, to
// count the entries of each row, and with `to_starts`, to copy them.
//
// compile-after: ../operators/csr/entries.cu
// compile-with: -DELEMENT=0
// compile-with: -DELEMENT=3

extern "C" __global__ void extreme_sizes(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, double infinity, double* largest, double* smallest)
{
    const Long row = ROW;
    if (row >= rows) return;
    double most = 0, least = infinity;
    for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES)
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
    if (LANE == 0) largest[row] = most, smallest[row] = least;
}

extern "C" __global__ void strong_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* roots, double threshold, Long* lengths, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    const double own = roots[row + offset];
    Long place = lengths ? 0 : to_starts[row];
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const double size = modulus(values[k]);
        if (columns[k] == row + offset || (size > 0 && size >= threshold * (own * roots[columns[k]]))) {
            if (!lengths) to_columns[place] = columns[k], to[place] = values[k];
            ++place;
        }
    }
    if (lengths) lengths[row] = place;
}

// Set `out` to the largest value of the columns of each row that is chosen; no row is empty.
template <typename T>
__device__ inline void set_largest(
    Long rows, const Long* starts, const int* columns, const T* values, const bool* chosen, T* out)
{
    const Long row = ROW;
    if (row >= rows || !chosen[row]) return;
    T most = values[columns[starts[row]]];
    for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES)
        if (values[columns[k]] > most) most = values[columns[k]];
    for (int distance = LANES / 2; distance; distance /= 2) {
        const T other = from_lane(most, distance);
        if (other > most) most = other;
    }
    if (LANE == 0) out[row] = most;
}

extern "C" __global__ void largest_keys(
    Long rows, const Long* starts, const int* columns, const Key* values, const bool* chosen, Key* out)
{
    set_largest(rows, starts, columns, values, chosen, out);
}

extern "C" __global__ void largest_labels(
    Long rows, const Long* starts, const int* columns, const Long* values, const bool* chosen, Long* out)
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
extern "C" __global__ void strongest_labels(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* roots, double steps, double shift, const Long* neighbours, Long* labels, Long* open)
{
    const Long row = ROW;
    if (row >= rows || LANE || labels[row] >= 0) return;
    double best = -1;
    Long label = -1;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const int column = columns[k];
        if (neighbours[column] < 0 || column == row + offset) continue;
        const double strength = floor(steps * modulus(values[k]) / (roots[row + offset] * roots[column]) + shift);
        if (strength > best || (strength == best && neighbours[column] < label))
            best = strength, label = neighbours[column];
    }
    labels[row] = label;
    if (label < 0 && starts[row + 1] - starts[row] > 1) *open = 1;
}

// Entries of at least the `limits` of their rows; the sum of the others is added to the diagonal, unless this made it
// less than `least` times as large.
extern "C" __global__ void filtered_entries(Long rows, const Long* starts, const int* columns, const Element* values,
    Long offset, const double* limits, double least, Long* lengths, const Long* to_starts, int* to_columns, Element* to)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    Element diagonal = from_real(0), rest = from_real(0);
    for (Long k = starts[row]; k < starts[row + 1]; ++k)
        if (columns[k] == row + offset)
            diagonal = values[k];
        else if (modulus(values[k]) < limits[row])
            rest = plus(rest, values[k]);
    const bool filters = real_part(plus(diagonal, rest)) >= least * real_part(diagonal);
    Long place = lengths ? 0 : to_starts[row];
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const bool own = columns[k] == row + offset;
        const double size = modulus(values[k]);
        if (!own && (size == 0 || (filters && size < limits[row]))) continue;
        if (!lengths) to_columns[place] = columns[k], to[place] = own && filters ? plus(values[k], rest) : values[k];
        ++place;
    }
    if (lengths) lengths[row] = place;
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
