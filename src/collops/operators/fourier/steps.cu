// Code shared by lines.cu and real.cu: Fourier transforms of a few numbers in the registers of a thread, and the steps of
// longer transforms of COLUMNS columns of LENGTH numbers in the shared memory of a block.
//
// compile-with: -DREAL=float -DLENGTH=8 -DCOLUMNS=4

struct alignas(2 * sizeof(REAL)) Complex {
    REAL x, y;
};

typedef long long Long;

__device__ inline Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ inline Complex operator*(Complex a, Complex b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

// Returns the sine of an angle between -pi and pi, by its series.
__device__ constexpr double sine(double angle)
{
    double term = angle, sum = angle;
    for (int k = 2; k < 40; k += 2) {
        term *= -angle * angle / (k * (k + 1));
        sum += term;
    }
    return sum;
}

// The cosines and sines of the RADIX equal parts of a circle.
template <int RADIX>
struct Circle {
    REAL cosines[RADIX] = {}, sines[RADIX] = {};
    __device__ constexpr Circle()
    {
        const double pi = 3.14159265358979323846;
        for (int k = 0; k < RADIX; ++k) {
            const double angle = 2 * pi * k / RADIX;
            sines[k] = REAL(sine(angle > pi ? angle - 2 * pi : angle));
            cosines[k] = REAL(sine(angle > pi ? angle - 1.5 * pi : pi / 2 - angle));
        }
    }
};

// Transforms RADIX values in registers, the result in order; clockwise or BACK.
template <int RADIX, bool BACK>
__device__ inline void small_transform(Complex (&values)[RADIX])
{
    constexpr Circle<RADIX> circle;
    const REAL sign = BACK ? -1 : 1;
    if constexpr (RADIX == 2) {
        const Complex a = values[0], b = values[1];
        values[0] = a + b;
        values[1] = a - b;
    } else if constexpr (RADIX % 2 == 0) {  // two of half the size
        Complex even[RADIX / 2], odd[RADIX / 2];
        #pragma unroll
        for (int k = 0; k < RADIX / 2; ++k) {
            even[k] = values[2 * k];
            odd[k] = values[2 * k + 1];
        }
        small_transform<RADIX / 2, BACK>(even);
        small_transform<RADIX / 2, BACK>(odd);
        #pragma unroll
        for (int k = 0; k < RADIX / 2; ++k) {
            Complex turned;
            if (k == 0)
                turned = odd[k];
            else if (4 * k == RADIX)
                turned = {sign * odd[k].y, -sign * odd[k].x};
            else if (8 * k == RADIX)
                turned = {circle.sines[k] * (odd[k].x + sign * odd[k].y),
                          circle.sines[k] * (odd[k].y - sign * odd[k].x)};
            else if (8 * k == 3 * RADIX)
                turned = {circle.sines[k] * (sign * odd[k].y - odd[k].x),
                          -circle.sines[k] * (sign * odd[k].x + odd[k].y)};
            else
                turned = odd[k] * Complex{circle.cosines[k], -sign * circle.sines[k]};
            values[k] = even[k] + turned;
            values[k + RADIX / 2] = even[k] - turned;
        }
    } else {  // by sums and differences of the values at opposite angles
        constexpr int HALF = RADIX / 2;
        Complex sums[HALF + 1], differences[HALF + 1];
        Complex total = values[0];
        const Complex first = values[0];
        #pragma unroll
        for (int k = 1; k <= HALF; ++k) {
            sums[k] = values[k] + values[RADIX - k];
            differences[k] = values[k] - values[RADIX - k];
            total = total + sums[k];
        }
        values[0] = total;
        #pragma unroll
        for (int m = 1; m <= HALF; ++m) {
            Complex even = first, odd = {0, 0};
            #pragma unroll
            for (int k = 1; k <= HALF; ++k) {
                const REAL c = circle.cosines[k * m % RADIX], s = sign * circle.sines[k * m % RADIX];
                even = {even.x + c * sums[k].x, even.y + c * sums[k].y};
                odd = {odd.x + s * differences[k].y, odd.y - s * differences[k].x};
            }
            values[m] = even + odd;
            values[RADIX - m] = even - odd;
        }
    }
}

// One step of the transforms of all columns, from parts of SPAN elements to parts of SPAN / RADIX; or, UNDONE, back
// again, up to a factor of RADIX. `load` and `store` are called with the index of an element and its column, and `roots`
// has the powers of exp(-2 pi i / LENGTH). Of the RADIX elements before the step, elements from USED on are zero, or not
// needed if it is undone.
template <int RADIX, int SPAN, bool BACK, bool UNDONE, int USED = RADIX, class Load, class Store>
__device__ inline void step(const Complex* __restrict__ roots, Load load, Store store)
{
    constexpr int apart = SPAN / RADIX;
    for (int task = threadIdx.x; task < LENGTH / RADIX * COLUMNS; task += blockDim.x) {
        const int number = task / COLUMNS, column = task % COLUMNS;
        const int within = number % apart, first = number / apart * SPAN + within;
        // Computing the powers of a root is cheaper than loading them.
        Complex powers[RADIX];
        powers[0] = {1, 0};
        powers[1] = roots[apart > 1 ? within * (LENGTH / SPAN) : 0];
        if (BACK) powers[1].y = -powers[1].y;
        #pragma unroll
        for (int k = 2; k < RADIX; ++k) powers[k] = powers[k / 2] * powers[k - k / 2];
        const auto turned = [&](Complex value, int k) { return k == 0 || apart == 1 ? value : value * powers[k]; };
        Complex values[RADIX];
        #pragma unroll
        for (int k = 0; k < RADIX; ++k) {
            values[k] = UNDONE || k < USED ? load(first + k * apart, column) : Complex{0, 0};
            if (UNDONE) values[k] = turned(values[k], k);
        }
        small_transform<RADIX, BACK>(values);
        #pragma unroll
        for (int k = 0; k < (UNDONE ? USED : RADIX); ++k)
            store(first + k * apart, column, UNDONE ? values[k] : turned(values[k], k));
    }
}

// STEPS has two decimal digits for each radix of a transform of SPAN elements, the first step in the last ones.

// Returns the frequency at an index after all steps.
template <int SPAN, Long STEPS>
__device__ inline int frequency(int place)
{
    constexpr int radix = STEPS % 100, apart = SPAN / radix;
    if constexpr (STEPS < 100)
        return place;
    else
        return place / apart + radix * frequency<apart, STEPS / 100>(place % apart);
}

// Returns the index of a frequency after all steps.
template <int SPAN, Long STEPS>
__device__ inline int place_of(int frequency)
{
    constexpr int radix = STEPS % 100, apart = SPAN / radix;
    if constexpr (STEPS < 100)
        return frequency;
    else
        return frequency % radix * apart + place_of<apart, STEPS / 100>(frequency / radix);
}

// All steps of a transform: the first one loads, those between use the shared memory, and the last one stores.
template <bool BACK, int SPAN, Long STEPS, class Load, class Inner, class Store>
__device__ inline void steps(Complex* shared, const Complex* __restrict__ roots, Load load, Inner inner, Store store)
{
    constexpr int radix = STEPS % 100;
    if constexpr (STEPS < 100) {
        step<radix, SPAN, BACK, false>(roots, load, store);
    } else {
        step<radix, SPAN, BACK, false>(
            roots, load, [&](int place, int column, Complex value) { shared[place * COLUMNS + column] = value; });
        __syncthreads();
        steps<BACK, SPAN / radix, STEPS / 100>(shared, roots, inner, inner, store);
    }
}
