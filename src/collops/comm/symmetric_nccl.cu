// Signals and atomic operations in the memory of other GPUs of this node, which kernels address. Arguments have 64 bits.

typedef unsigned long long Word;

#ifndef WAIT_WHILE  // defined before this text as a loop with a deadline, if waits have one
#define WAIT_WHILE(condition) \
    while (condition) {       \
    }
#endif

extern "C" __global__ void set_signal(Word* signal, Word value) {
    __threadfence_system();
    *reinterpret_cast<volatile Word*>(signal) = value;
}

extern "C" __global__ void wait_signal(const Word* signal, Word value) {
    WAIT_WHILE(*reinterpret_cast<const volatile Word*>(signal) < value);
    __threadfence_system();
}

// Each stores the elements from before in `fetched`; additions only unless it is null. Sums of signed and unsigned
// integers have the same bits.
#define ATOMICS(BITS, TYPE)                                                                                            \
    extern "C" __global__ void fetch_add_##BITS(TYPE* target, const TYPE* values, TYPE* fetched, Word count) {         \
        const Word i = Word(blockIdx.x) * blockDim.x + threadIdx.x;                                                    \
        if (i >= count) return;                                                                                        \
        const TYPE before = atomicAdd_system(target + i, values[i]);                                                   \
        if (fetched) fetched[i] = before;                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void compare_and_swap_##BITS(TYPE* target, const TYPE* expected, const TYPE* values,         \
                                                       TYPE* fetched, Word count) {                                    \
        const Word i = Word(blockIdx.x) * blockDim.x + threadIdx.x;                                                    \
        if (i < count) fetched[i] = atomicCAS_system(target + i, expected[i], values[i]);                              \
    }
ATOMICS(32, unsigned)
ATOMICS(64, Word)
