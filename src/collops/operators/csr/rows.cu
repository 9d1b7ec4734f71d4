// Rows of sparse matrices on devices: diagonals, single entries, merged and split blocks, and bounds of the lengths of products.
//
// compile-after: entries.cu
// compile-with: -DELEMENT=0
// compile-with: -DELEMENT=3

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

// The columns and values of rows with one entry at most; the column is -1 if there is none.
extern "C" __global__ void single_entries(
    Long rows, const Long* starts, const int* columns, const Element* values, int* to_columns, Element* to)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    const bool filled = starts[row + 1] > starts[row];
    to_columns[row] = filled ? columns[starts[row]] : -1;
    to[row] = filled ? values[starts[row]] : from_real(0);
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

// The number of entries of each row in other columns than those with the global numbers `first` to `end`.
extern "C" __global__ void outer_lengths(
    Long rows, const Long* starts, const int* columns, const Long* numbers, Long first, Long end, Long* lengths)
{
    const Long row = ROW;
    if (row >= rows || LANE) return;
    Long count = 0;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const Long number = numbers[columns[k]];
        count += number < first || number >= end;
    }
    lengths[row] = count;
}

// The columns with the global numbers `first` to `end`, counted from `first`, in the inner block; others in the outer.
extern "C" __global__ void split_rows(Long rows, const Long* starts, const int* columns, const Element* values,
    const Long* numbers, Long first, Long end, const Long* outer_starts, int* outer_columns, Element* outer,
    int* inner_columns, Element* inner)
{
    const Long row = ROW;
    if (row >= rows) return;
    Long place = outer_starts[row];
    const Long shift = place; // entries of the outer block before this row
    if (place == outer_starts[row + 1]) {
        for (Long k = starts[row] + LANE; k < starts[row + 1]; k += LANES)
            inner_columns[k - shift] = static_cast<int>(numbers[columns[k]] - first), inner[k - shift] = values[k];
        return;
    }
    if (LANE) return;
    Long to = starts[row] - shift;
    for (Long k = starts[row]; k < starts[row + 1]; ++k) {
        const Long number = numbers[columns[k]];
        if (number < first || number >= end)
            outer_columns[place] = columns[k], outer[place++] = values[k];
        else
            inner_columns[to] = static_cast<int>(number - first), inner[to++] = values[k];
    }
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
