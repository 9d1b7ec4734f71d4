// One-sided stores between GPUs: values are packed straight into the receivers' memory, and counters say when.
//
// For every place of a channel a rank counts how often it has filled and how often it has read it. Counters live in
// symmetric memory and are kept by the kernels themselves, so that a CUDA graph which recorded them can be replayed.
// Kernels that take what arrives wait for it themselves; `exchange` sends first and takes then, all in one launch, whose
// blocks must therefore all be on the device at once: few enough for several such kernels.
//
// Elements, their operations and points are those of the kernels of moves, which this text follows.
//
// compile-after: ../packing/moves.cu
// compile-with: -DELEMENT=3 -DOPERATION=0
// compile-with: -DELEMENT=5 -DOPERATION=1
// compile-with: -DELEMENT=0 -DOPERATION=4

typedef unsigned long long Count;

// What `state` counts of a place: uses that were sent, blocks that have sent theirs, uses that were read, blocks that
// have read theirs.
#define SENT 0
#define SENDING 1
#define READ 2
#define READING 3

#define AT_ONCE 4  // loads of a thread before its stores, to have enough under way

__device__ inline Count now(const Count* counter) { return *static_cast<const volatile Count*>(counter); }

#ifndef WAIT_WHILE  // a loop that ends at a deadline comes before this text
#define WAIT_WHILE(condition) \
    while (condition) {       \
    }
#endif

__device__ inline void wait_for_all(Long ranks, const Count* const* counters, Count least)
{
    for (Long r = threadIdx.x; r < ranks; r += blockDim.x)
        WAIT_WHILE(now(counters[r]) < least);
    if (threadIdx.x < ranks) __threadfence_system();
    __syncthreads();  // which passes on what those threads have seen
}

// Whether this thread speaks for the grid: every block has come here, and what they stored can be seen everywhere. As in
// the grid barriers of CUDA, one thread's fence is enough for all that its block has done before.
__device__ inline bool comes_last(Count* come)
{
    __syncthreads();
    if (threadIdx.x) return false;
    __threadfence_system();
    if (atomicAdd(come, static_cast<Count>(1)) + 1 != gridDim.x) return false;
    *come = 0;
    __threadfence_system();
    return true;
}

__device__ inline void tell_all(Long ranks, Count* const* counters, Count use)
{
    for (Long r = 0; r < ranks; ++r) *static_cast<volatile Count*>(counters[r]) = use;
}

// Moves values, several loads of a thread before its stores. No point of `to` is there twice.
__device__ inline void move_values(
    const Element* source, Element* target, Long points, Long width, const Points& from, const Points& to)
{
    const Long count = points * width, stride = static_cast<Long>(gridDim.x) * blockDim.x;
    for (Long t = blockIdx.x * static_cast<Long>(blockDim.x) + threadIdx.x; t < count; t += AT_ONCE * stride) {
        Element values[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Long u = t + k * stride, point = width == 1 ? u : u / width;
            if (u < count) values[k] = source[from[point] * width + (u - point * width)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Long u = t + k * stride, point = width == 1 ? u : u / width;
            if (u >= count) break;
            Element* place = target + to[point] * width + (u - point * width);
#if OPERATION == REPLACE
            *place = values[k];
#else
            *place = combine(*place, values[k]);
#endif
        }
    }
}

// What leaves: `stops` are the ends of the receivers' segments, `places` where the segments go; `read_here` the counters
// that receivers raise when they have read, `filled_there` those that this rank raises.
#define LEAVING                                                                                                        \
    Long leaving, POINTS(from), Long receivers, const Long *stops, Element *const *places,                             \
        const Count *const *read_here, Count *const *filled_there
// What stays on this device.
#define STAYING Long staying, POINTS(here), POINTS(there)
// What arrives, in `incoming`: `filled_here` are the counters that senders raise, `read_there` those that this rank raises.
#define ARRIVING                                                                                                       \
    const Element *incoming, Long senders, const Count *const *filled_here, Count *const *read_there, Count *state

// Sends what leaves, and moves what stays: while that travels, or before it.
__device__ inline void send(const Element* source, Element* target, Long width, Long leaving, const Points& from,
    Long receivers, const Long* stops, Element* const* places, const Count* const* read_here, Count* const* filled_there,
    Long staying, const Points& here, const Points& there, Count* state, bool staying_first = false)
{
    if (staying_first || !receivers) move_values(source, target, staying, width, here, there);
    if (!receivers) return;
    const Count use = now(state + SENT);
    wait_for_all(receivers, read_here, use);
    const Long count = leaving * width, stride = static_cast<Long>(gridDim.x) * blockDim.x;
    Long receiver = 0;
    for (Long t = blockIdx.x * static_cast<Long>(blockDim.x) + threadIdx.x; t < count; t += AT_ONCE * stride) {
        Element values[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Long u = t + k * stride, point = width == 1 ? u : u / width;
            if (u < count) values[k] = source[from[point] * width + (u - point * width)];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const Long u = t + k * stride, point = width == 1 ? u : u / width;
            if (u >= count) break;
            while (point >= stops[receiver]) ++receiver;
            const Long begin = receiver ? stops[receiver - 1] : 0;
            places[receiver][u - begin * width] = values[k];
        }
    }
    if (!staying_first) move_values(source, target, staying, width, here, there);
    if (comes_last(state + SENDING)) {
        state[SENT] = use + 1;
        tell_all(receivers, filled_there, use + 1);
    }
}

__device__ inline void take(Element* target, Long width, Long arriving, const Points& to, const Element* incoming,
    Long senders, const Count* const* filled_here, Count* const* read_there, Count* state)
{
    const Count use = now(state + READ) + 1;
    wait_for_all(senders, filled_here, use);
    move_values(incoming, target, arriving, width, Points{0, 0, 1}, to);
    if (comes_last(state + READING)) {
        state[READ] = use;
        tell_all(senders, read_there, use);
    }
}

// As `take`, where points of the target have several values each, in `order`: first those that stay on this device,
// then those that arrive. One thread combines them in turn.
__device__ inline void take_in_turn(const Element* source, Element* target, Long width, Long staying, const Points& here,
    Long different, const int* to, const int* starts, const int* order, const Element* incoming, Long senders,
    const Count* const* filled_here, Count* const* read_there, Count* state)
{
    const Count use = now(state + READ) + 1;
    wait_for_all(senders, filled_here, use);
    FOR_VALUES(t, different * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        Element* place = target + static_cast<Long>(to[point]) * width + value;
        Element sum = *place;
        for (int k = starts[point]; k < starts[point + 1]; ++k) {
            const Long entry = order[k];
            sum = combine(sum,
                entry < staying ? source[here[entry] * width + value] : incoming[(entry - staying) * width + value]);
        }
        *place = sum;
    }
    if (comes_last(state + READING)) {
        state[READ] = use;
        tell_all(senders, read_there, use);
    }
}

// ---- Kernels: the start of a mover, its end, and all of it

// Where `both` is true every second block begins with what stays: that keeps the memory busy, and what leaves the links.
extern "C" __launch_bounds__(256, 6) __global__ void put(
    const Element* source, Element* target, Long width, LEAVING, STAYING, Count* state, Long both)
{
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, places, read_here, filled_there, staying,
        AS_POINTS(here), AS_POINTS(there), state, both && blockIdx.x % 2);
}

extern "C" __global__ void fill(Element* target, Long width, Long arriving, POINTS(to), ARRIVING)
{
    take(target, width, arriving, AS_POINTS(to), incoming, senders, filled_here, read_there, state);
}

extern "C" __global__ void fill_in_turn(
    Element* target, Long width, Long different, const int* to, const int* starts, const int* order, ARRIVING)
{
    take_in_turn(target, target, width, 0, Points{0, 0, 0}, different, to, starts, order, incoming, senders,
        filled_here, read_there, state);
}

extern "C" __global__ void exchange(
    const Element* source, Element* target, Long width, LEAVING, STAYING, Long arriving, POINTS(to), ARRIVING)
{
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, places, read_here, filled_there, staying,
        AS_POINTS(here), AS_POINTS(there), state);
    if (senders) take(target, width, arriving, AS_POINTS(to), incoming, senders, filled_here, read_there, state);
}

extern "C" __global__ void exchange_in_turn(const Element* source, Element* target, Long width, LEAVING, Long staying,
    POINTS(here), Long different, const int* to, const int* starts, const int* order, ARRIVING)
{
    const Points nothing = {0, 0, 0};
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, places, read_here, filled_there, 0, nothing,
        nothing, state);
    take_in_turn(source, target, width, staying, AS_POINTS(here), different, to, starts, order, incoming, senders,
        filled_here, read_there, state);
}

// ---- Kernels for what is taken in another way: wait until all senders have filled the place once more, and tell them
// that it has been read

extern "C" __global__ void arrive(Long senders, const Count* const* filled_here, Count* state)
{
    const Count use = now(state + READ) + 1;
    wait_for_all(senders, filled_here, use);
    if (threadIdx.x == 0) state[READ] = use;
}

extern "C" __global__ void release(Long senders, Count* const* read_there, const Count* state)
{
    __threadfence_system();
    if (threadIdx.x == 0) tell_all(senders, read_there, state[READ]);
}
