// One-sided stores between GPUs: values are packed directly into the receivers' memory, and counters signal completion.
//
// For every slot of an exchange a rank counts how often it has written and how often it has read it. Counters are in
// symmetric memory and are updated by the kernels themselves, so that a recorded CUDA graph can be replayed. Kernels
// that receive values wait for them. `exchange` sends and then receives in one launch, whose blocks must all be
// resident on the device at once: few enough for several such kernels.
//
// Element types, operations and points are defined in moves.cu, to which this source is appended.
//
// compile-after: ../packing/moves.cu
// compile-with: -DELEMENT=3 -DOPERATION=0
// compile-with: -DELEMENT=5 -DOPERATION=1
// compile-with: -DELEMENT=0 -DOPERATION=4

typedef unsigned long long Count;

// Counts in `state` for a slot: uses sent, blocks that have sent the current use, uses read, blocks that have read it.
#define SENT 0
#define SENDING 1
#define READ 2
#define READING 3

#define AT_ONCE 4  // loads of a thread before its stores, for enough memory parallelism

__device__ inline Count now(const Count* counter) { return *static_cast<const volatile Count*>(counter); }

#ifndef WAIT_WHILE  // device_wait.cu, which may precede this source, defines a loop with a deadline
#define WAIT_WHILE(condition) \
    while (condition) {       \
    }
#endif

__device__ inline void wait_for_all(Long ranks, const Count* const* counters, Count least)
{
    for (Long r = threadIdx.x; r < ranks; r += blockDim.x)
        WAIT_WHILE(now(counters[r]) < least);
    if (threadIdx.x < ranks) __threadfence_system();
    __syncthreads();  // makes the observations of these threads visible to the block
}

// Whether this is the first thread of the last block to arrive, after the stores of all blocks are visible everywhere.
// As in CUDA's grid barriers, one thread's fence covers all earlier stores of its block.
__device__ inline bool is_last_block(Count* arrived)
{
    __syncthreads();
    if (threadIdx.x) return false;
    __threadfence_system();
    if (atomicAdd(arrived, static_cast<Count>(1)) + 1 != gridDim.x) return false;
    *arrived = 0;
    __threadfence_system();
    return true;
}

__device__ inline void tell_all(Long ranks, Count* const* counters, Count use)
{
    for (Long r = 0; r < ranks; ++r) *static_cast<volatile Count*>(counters[r]) = use;
}

// Moves values, with several loads of a thread before its stores. The points of `to` are unique.
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
            Element* element = target + to[point] * width + (u - point * width);
#if OPERATION == REPLACE
            *element = values[k];
#else
            *element = combine(*element, values[k]);
#endif
        }
    }
}

// Outgoing values: `stops` are the ends of the receivers' segments, `targets` their addresses; `read_here` are the
// local counters that receivers increment after reading, `filled_there` the remote counters that this rank increments.
#define LEAVING                                                                                                        \
    Long leaving, POINTS(from), Long receivers, const Long *stops, Element *const *targets,                            \
        const Count *const *read_here, Count *const *filled_there
// Values that stay on this device.
#define STAYING Long staying, POINTS(here), POINTS(there)
// Incoming values: `filled_here` are the local counters that senders increment, `read_there` the remote counters that
// this rank increments.
#define ARRIVING                                                                                                       \
    const Element *incoming, Long senders, const Count *const *filled_here, Count *const *read_there, Count *state

// Sends the outgoing values, and moves local values while the stores are in flight, or before them.
__device__ inline void send(const Element* source, Element* target, Long width, Long leaving, const Points& from,
    Long receivers, const Long* stops, Element* const* targets, const Count* const* read_here,
    Count* const* filled_there, Long staying, const Points& here, const Points& there, Count* state, bool staying_first = false)
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
            targets[receiver][u - begin * width] = values[k];
        }
    }
    if (!staying_first) move_values(source, target, staying, width, here, there);
    if (is_last_block(state + SENDING)) {
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
    if (is_last_block(state + READING)) {
        state[READ] = use;
        tell_all(senders, read_there, use);
    }
}

// As `take`, for points of the target with several values each, in `order`: first the local values, then the incoming
// ones. One thread combines them sequentially.
__device__ inline void take_in_turn(const Element* source, Element* target, Long width, Long staying,
    const Points& here,
    Long different, const int* to, const int* starts, const int* order, const Element* incoming, Long senders,
    const Count* const* filled_here, Count* const* read_there, Count* state)
{
    const Count use = now(state + READ) + 1;
    wait_for_all(senders, filled_here, use);
    FOR_VALUES(t, different * width)
    {
        const Long point = width == 1 ? t : t / width, value = t - point * width;
        Element* element = target + static_cast<Long>(to[point]) * width + value;
        Element sum = *element;
        for (int k = starts[point]; k < starts[point + 1]; ++k) {
            const Long entry = order[k];
            sum = combine(sum,
                entry < staying ? source[here[entry] * width + value] : incoming[(entry - staying) * width + value]);
        }
        *element = sum;
    }
    if (is_last_block(state + READING)) {
        state[READ] = use;
        tell_all(senders, read_there, use);
    }
}

// ---- Kernels: the start of a mover, its end, and the complete move

// If `both` is true, every second block begins with the local values: these use the memory while the others use links.
extern "C" __launch_bounds__(256, 6) __global__ void put(
    const Element* source, Element* target, Long width, LEAVING, STAYING, Count* state, Long both)
{
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, targets, read_here, filled_there, staying,
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
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, targets, read_here, filled_there, staying,
        AS_POINTS(here), AS_POINTS(there), state);
    if (senders) take(target, width, arriving, AS_POINTS(to), incoming, senders, filled_here, read_there, state);
}

extern "C" __global__ void exchange_in_turn(const Element* source, Element* target, Long width, LEAVING, Long staying,
    POINTS(here), Long different, const int* to, const int* starts, const int* order, ARRIVING)
{
    const Points nothing = {0, 0, 0};
    send(source, target, width, leaving, AS_POINTS(from), receivers, stops, targets, read_here, filled_there, 0,
        nothing, nothing, state);
    take_in_turn(source, target, width, staying, AS_POINTS(here), different, to, starts, order, incoming, senders,
        filled_here, read_there, state);
}

// ---- Kernels for values that another kernel unpacks: wait until all senders have filled the slot, and signal to them
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
