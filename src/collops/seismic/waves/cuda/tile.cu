// A tile in arrays on a device, and its points: what media.cu and elastic.cu share, which have a struct Step of their own.

#ifdef __HIP__
#pragma clang fp contract(off)
#endif

#ifdef COLLOPS_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define WIDTH 8  // maximum of half the order of accuracy

// The tile in an array: where its first point is, and how far times, fields, planes and rows are apart. Points of a row are contiguous.
struct View {
    Real* at;
    long long time, field, plane, row;
};

// Where the array of a step is: the one of a number relative to the clock, if times are apart.
template <class Step>
__device__ __forceinline__ Real* place(const Step& s, const View& view, int ahead)
{
    return view.at + (view.time ? (s.clock[0] + ahead - s.clock[1]) * view.time : 0);
}

struct Point {
    int i, j, k;
};

// Registers have no index: an array with a variable index would be in local memory.
__device__ __forceinline__ int index_along(const Point& p, int axis)
{
    return axis == 0 ? p.i : axis == 1 ? p.j : p.k;
}

__device__ __forceinline__ long long index_in(const View& view, const Point& p)
{
    return p.i * view.plane + p.j * view.row + p.k;
}

template <class Step>
__device__ __forceinline__ long long own_index(const Step& s, const Point& p)
{
    return ((long long)p.i * s.size[1] + p.j) * s.size[2] + p.k;
}

// How far neighbours along an axis are apart, in a view or where a variable of a layer is.
template <class Places>
__device__ __forceinline__ int gap_of(const Places& places, int axis)
{
    return axis == 0 ? (int)places.plane : axis == 1 ? (int)places.row : 1;
}

// Whether a variable of a layer has an index along its axis.
template <class Variable>
__device__ __forceinline__ bool has(const Variable& variable, int index)
{
    return index >= variable.first && index < variable.last;
}
