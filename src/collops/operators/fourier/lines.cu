// Complex Fourier transforms along an axis that is not the last one of arrays in C order, in one pass over the memory.
//
// A block transforms COLUMNS neighbouring columns of LENGTH elements in shared memory, by steps whose radices have the
// product LENGTH, RADICES as in steps.cu. The first step reads the array and the last one writes it, in the right order.
//
// compile-after: steps.cu
// compile-with: -DREAL=float -DLENGTH=343 -DRADICES=70707 -DCOLUMNS=8 -DTHREADS=256
// compile-with: -DREAL=double -DLENGTH=144 -DRADICES=916 -DCOLUMNS=4 -DTHREADS=256
// compile-with: -DREAL=float -DLENGTH=13 -DRADICES=13 -DCOLUMNS=8 -DTHREADS=256

// Blocks along y are parts of the array before the axis; `after` elements follow each other. `roots` has the powers of
// exp(-2 pi i / LENGTH), and all results are multiplied by `scale`. Source and target may be one array.
template <bool BACK>
__device__ inline void transform(const Complex* source, Complex* target, Long after, const Complex* __restrict__ roots,
                                 REAL scale)
{
    extern __shared__ double memory[];
    Complex* const shared = reinterpret_cast<Complex*>(memory);
    const Long begin = blockIdx.x * Long(COLUMNS);
    source += blockIdx.y * LENGTH * after + begin;
    target += blockIdx.y * LENGTH * after + begin;
    const int count = int(after - begin < COLUMNS ? after - begin : COLUMNS);
    steps<BACK, LENGTH, RADICES>(
        shared, roots,
        [&](int place, int column) { return column < count ? source[place * after + column] : Complex{0, 0}; },
        [&](int place, int column) { return shared[place * COLUMNS + column]; },
        [&](int place, int column, Complex value) {
            if (column < count)
                target[frequency<LENGTH, RADICES>(place) * after + column] = {scale * value.x, scale * value.y};
        });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    forward(const Complex* source, Complex* target, Long after, const Complex* roots, REAL scale)
{
    transform<false>(source, target, after, roots, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    back(const Complex* source, Complex* target, Long after, const Complex* roots, REAL scale)
{
    transform<true>(source, target, after, roots, scale);
}
