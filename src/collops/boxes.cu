// Copies between two boxes of equal shape: planes of rows of contiguous elements, with any strides.
//
// A thread copies EACH elements of its rows, and loads all of them before the first store. The threads of a warp copy
// neighbouring elements, so that rows of any alignment are copied at memory bandwidth.
//
// compile-with: -DBYTES=1
// compile-with: -DBYTES=16

#define EACH 4

template <int BYTES_OF_ONE>
struct Element;
template <> struct Element<1> { typedef unsigned char Type; };
template <> struct Element<2> { typedef unsigned short Type; };
template <> struct Element<4> { typedef unsigned Type; };
template <> struct Element<8> { typedef uint2 Type; };
template <> struct Element<16> { typedef uint4 Type; };

typedef Element<BYTES>::Type Unit;
typedef long long Long;

// Strides are in elements.
extern "C" __global__ void __launch_bounds__(256)
    copy_box(const Unit* __restrict__ source, Unit* __restrict__ target, Long width, Long height, Long rows,
             Long source_row, Long target_row, Long source_plane, Long target_plane)
{
    const Long begin = static_cast<Long>(blockIdx.x) * blockDim.x * EACH + threadIdx.x;
    const Long step = static_cast<Long>(gridDim.y) * blockDim.y;
    for (Long row = static_cast<Long>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += step) {
        const Long plane = row / height, within = row - plane * height;
        const Unit* const from = source + plane * source_plane + within * source_row;
        Unit* const to = target + plane * target_plane + within * target_row;
        Unit values[EACH];
        #pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (begin + k * blockDim.x < width) values[k] = from[begin + k * blockDim.x];
        #pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (begin + k * blockDim.x < width) to[begin + k * blockDim.x] = values[k];
    }
}

#define MAX_BOXES 8
#define OF_PEERS 8  // elements in flight per thread, since remote GPU memory has a high latency
#define TEAM 32     // threads that copy a piece of a row
#define LINE 128    // bytes: accesses of a team to the memory of another GPU begin at a multiple of it
#define THREADS 512

struct Boxes {
    const Unit* sources[MAX_BOXES];
    Unit* targets[MAX_BOXES];
    Long count, writes;         // whether the targets, rather than the sources, are on other GPUs
    Long sizes[MAX_BOXES][7];  // width to target_plane, as above
};

// Several boxes at once; block b copies pieces of box b % count. A launch has few blocks, which leaves most
// multiprocessors to other kernels.
extern "C" __global__ void __launch_bounds__(THREADS) copy_boxes(Boxes boxes)
{
    const int in_line = LINE / sizeof(Unit), teams = THREADS / TEAM;
    const int count = static_cast<int>(boxes.count), box = blockIdx.x % count, lane = threadIdx.x % TEAM;
    const Long width = boxes.sizes[box][0], height = boxes.sizes[box][1], rows = boxes.sizes[box][2];
    const Long source_row = boxes.sizes[box][3], target_row = boxes.sizes[box][4];
    const Long source_plane = boxes.sizes[box][5], target_plane = boxes.sizes[box][6];
    const Long pieces = (width + in_line - 1 + TEAM * OF_PEERS - 1) / (TEAM * OF_PEERS);
    const Long step = gridDim.x / count * teams;
    for (Long piece = blockIdx.x / count * teams + threadIdx.x / TEAM; piece < rows * pieces; piece += step) {
        const Long row = piece / pieces, plane = row / height, within = row - plane * height;
        const Unit* const from = boxes.sources[box] + plane * source_plane + within * source_row;
        Unit* const to = boxes.targets[box] + plane * target_plane + within * target_row;
        const int ahead = reinterpret_cast<unsigned long long>(boxes.writes ? to : from) / sizeof(Unit) % in_line;
        const Long begin = (piece - row * pieces) * (TEAM * OF_PEERS) + lane - ahead;
        Unit values[OF_PEERS];
        #pragma unroll
        for (int k = 0; k < OF_PEERS; ++k) {
            const Long i = begin + k * TEAM;
            if (0 <= i && i < width) values[k] = from[i];
        }
        #pragma unroll
        for (int k = 0; k < OF_PEERS; ++k) {
            const Long i = begin + k * TEAM;
            if (0 <= i && i < width) to[i] = values[k];
        }
    }
}
