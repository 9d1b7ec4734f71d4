// Short collective calls and exchanges between GPUs of one host: every rank stores its values into the memory of the
// others and waits for theirs. In a collective call it adds up those of all ranks in the order of ranks, so that all
// have the same bits, or keeps them as they are.
//
// Eight bytes of values travel in a packet of sixteen. Each half of a packet has 32 bits of values and the number of
// the call (the epoch), and arrives as a whole: a rank that reads the epoch has the values as well. There is no fence,
// and no other message to say that the values are there.
//
// Block b of a launch serves the packets from b * CHUNK on, and counts its calls on the device, so that a CUDA graph
// which recorded the launch can be replayed. All ranks launch the same blocks, and on each device one launch ends
// before the next begins.
//
// Two inboxes that take turns are enough. Block b of rank A writes those of epoch n + 2 into the inboxes of epoch n. At
// that time its launch of epoch n + 1 has ended, in which it received at least one packet of that epoch from block b of
// every rank B. B sent it after its launch of epoch n had ended, which had read all packets of epoch n.
//
// An exchange is between pairs of ranks, at most one message each way. Both ranks of a pair know both lengths, by which
// they launch the same blocks for it, and they have the same exchanges in the same order. Block b of a pair has its own
// inboxes and its own epoch at both ends, which counts the exchanges that it takes part in: neither other pairs nor
// exchanges without it matter. It sends at least one packet each way, an empty one if there are no values, so the
// argument above holds for it with "the other rank" for "every rank". Without that packet, a rank that only sends could
// write epoch n + 2 before the other one has read epoch n.
//
// No launches wait for each other in a circle. All ranks have them in the same order, and all before the first one that
// has not ended have ended, so that each of its ranks runs it or is about to. Every block sends before it waits.
//
// Epochs have 32 bits and begin anew after 2^32 calls. So that no packet is left from that long ago, all packets of a
// block are sent in two calls out of REFRESH, however short the arrays are.

#ifndef CHUNK
#define CHUNK 256      // packets of a block, and its most threads
#define SUM_BLOCKS 64  // most blocks of a collective call; in inboxes, those of pairs follow
#endif
#define MAX_RANKS 8       // of a host
#define REFRESH (1u << 30)  // calls
#define LOOK 1024u         // attempts to read between two looks at the host's memory

#ifndef WAIT_WHILE  // a loop that ends at a deadline comes before this text
#define WAIT_WHILE(condition) \
    while (condition) {       \
    }
#endif

typedef unsigned long long Half;

struct alignas(16) Packet {
    Half halves[2];
};

union Payload {
    unsigned words[2];
    float floats[2];
    double number;
    Half whole;
};

// What a rank knows of the others. The epochs of its blocks follow in memory: first for collective calls, then for
// pairs, by block and other rank. `aborted` is in the host's memory: the host sets it when it stops waiting.
struct Link {
    Half ranks, rank, capacity;  // the packets of an inbox from each sender
    const volatile int* aborted;
    Packet* inboxes[MAX_RANKS];  // of each rank: by parity of the epoch, sender and packet
};

#if defined(__CUDA_ARCH__)
// One access of 16 bytes, of which each half is atomic.
__device__ inline void send(Packet* place, Half first, Half second)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(place), "l"(first), "l"(second) : "memory");
}
__device__ inline Packet received(const Packet* place)
{
    Packet packet;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(packet.halves[0]), "=l"(packet.halves[1])
                 : "l"(place)
                 : "memory");
    return packet;
}
#else
__device__ inline void send(Packet* place, Half first, Half second)
{
    volatile Half* halves = place->halves;
    halves[0] = first;
    halves[1] = second;
}
__device__ inline Packet received(const Packet* place)
{
    const volatile Half* halves = place->halves;
    return {{halves[0], halves[1]}};
}
#endif

// Types that are added: of 32 bits, two in a payload, and of 64 bits. Or each rank gets values of its own.
enum { FLOAT, DOUBLE, INTEGER, LONG_INTEGER, ALLTOALL };

__device__ inline Payload sum(Payload a, Payload b, int type)
{
    Payload total;
    if (type == DOUBLE) {
        total.number = a.number + b.number;
    } else if (type == LONG_INTEGER) {
        total.whole = a.whole + b.whole;
    } else {
        for (int k = 0; k < 2; ++k)
            if (type == FLOAT)
                total.floats[k] = a.floats[k] + b.floats[k];
            else
                total.words[k] = a.words[k] + b.words[k];
    }
    return total;
}

__device__ inline Packet* inbox(const Link& link, int of, Half sender, unsigned epoch)
{
    return link.inboxes[of] + ((epoch & 1) * link.ranks + sender) * link.capacity;
}

// How many of the packets from `first` on a block sends and receives: at least one.
__device__ inline int count_in_block(int packets, int first, unsigned epoch)
{
    const int left = packets - first;
    return left > CHUNK || epoch % REFRESH < 2 ? CHUNK : left > 1 ? left : 1;
}

// Whether the packets of all ranks have come, which are then in `packets`.
__device__ inline bool all_received(const Packet* first, Half apart, int ranks, unsigned epoch, Packet* packets)
{
    bool all = true;
#pragma unroll
    for (int r = 0; r < MAX_RANKS; ++r)
        if (r < ranks) packets[r] = received(first + r * apart);
#pragma unroll
    for (int r = 0; r < MAX_RANKS; ++r)
        if (r < ranks) all = all && packets[r].halves[0] >> 32 == epoch && packets[r].halves[1] >> 32 == epoch;
    return all;
}

__device__ inline Half word_at(const unsigned* words, int place, int count) { return place < count ? words[place] : 0; }

__device__ inline void keep(Payload value, unsigned* words, int place, int count)
{
    if (place < count) words[place] = value.words[0];
    if (place + 1 < count) words[place + 1] = value.words[1];
}

// Does the part of a call that the block of this number has, by all its threads: for arrays of `words` 32-bit words, or
// in an all-to-all of as many for each rank. Arrays that are added up may be one as `source` and `target`.
__device__ inline void collective(
    Link& link, const unsigned* source, unsigned* target, int words, int type, int block)
{
    Half* epochs = reinterpret_cast<Half*>(&link + 1);
    const unsigned epoch = static_cast<unsigned>(epochs[block]) + 1;
    const int ranks = static_cast<int>(link.ranks), first = block * CHUNK;
    const int count = count_in_block((words + 1) / 2, first, epoch);
    Packet* places[MAX_RANKS];
#pragma unroll
    for (int r = 0; r < MAX_RANKS; ++r)
        if (r < ranks) places[r] = inbox(link, r, link.rank, epoch) + first;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const int place = 2 * (first + i);
        const Half stamp = static_cast<Half>(epoch) << 32;
#pragma unroll
        for (int r = 0; r < MAX_RANKS; ++r)
            if (r < ranks) {
                const unsigned* values = source + (type == ALLTOALL ? r * words : 0);
                send(places[r] + i, stamp | word_at(values, place, words), stamp | word_at(values, place + 1, words));
            }
    }
    const Packet* here = inbox(link, static_cast<int>(link.rank), 0, epoch) + first;
    const Half apart = link.capacity;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        Packet packets[MAX_RANKS];
        unsigned attempts = 0;
        WAIT_WHILE(!all_received(here + i, apart, ranks, epoch, packets) && (++attempts % LOOK || !*link.aborted));
        const int place = 2 * (first + i);
        Payload total;
#pragma unroll
        for (int r = 0; r < MAX_RANKS; ++r) {
            if (r >= ranks) break;
            Payload value;
            value.words[0] = static_cast<unsigned>(packets[r].halves[0]);
            value.words[1] = static_cast<unsigned>(packets[r].halves[1]);
            if (type == ALLTOALL) keep(value, target + r * words, place, words);
            total = r ? sum(total, value, type) : value;
        }
        if (type != ALLTOALL) keep(total, target, place, words);
    }
    __syncthreads();  // all threads have read the epoch
    if (threadIdx.x == 0) epochs[block] = epoch;
}

extern "C" __launch_bounds__(CHUNK) __global__ void call_collective(
    const unsigned* source, unsigned* target, Link* link, long long words, long long type)
{
    collective(*link, source, target, static_cast<int>(words), static_cast<int>(type), blockIdx.x);
}

// A launch of exchanges, as its only parameter.
struct Pairs {
    unsigned char* places[MAX_RANKS - 1][2];  // what is sent to the other rank, and where what it sends is kept
    Link* link;
    Half count;
    Half facts[MAX_RANKS - 1][3];  // the other rank, and the bytes sent and received
};

// Words of messages that need not begin at a multiple of four bytes or end at one.
__device__ inline bool has_words(const unsigned char* bytes, int count)
{
    return (reinterpret_cast<Half>(bytes) | count) % 4 == 0;
}

__device__ inline Half word_of(const unsigned char* bytes, int place, int count)
{
    if (has_words(bytes, count)) return word_at(reinterpret_cast<const unsigned*>(bytes), place, count / 4);
    Half word = 0;
    for (int k = 0; k < 4; ++k)
        if (4 * place + k < count) word |= static_cast<Half>(bytes[4 * place + k]) << 8 * k;
    return word;
}

__device__ inline void keep_bytes(Payload value, unsigned char* bytes, int place, int count)
{
    if (has_words(bytes, count)) return keep(value, reinterpret_cast<unsigned*>(bytes), place, count / 4);
    for (int k = 0; k < 8; ++k)
        if (4 * place + k < count) bytes[4 * place + k] = static_cast<unsigned char>(value.whole >> 8 * k);
}

extern "C" __launch_bounds__(CHUNK) __global__ void exchange_pairs(Pairs pairs)
{
    const int pair = blockIdx.x % static_cast<int>(pairs.count), block = blockIdx.x / static_cast<int>(pairs.count);
    const int other = static_cast<int>(pairs.facts[pair][0]), first = block * CHUNK;
    const int sent = static_cast<int>(pairs.facts[pair][1]), kept = static_cast<int>(pairs.facts[pair][2]);
    const unsigned char* source = pairs.places[pair][0];
    unsigned char* target = pairs.places[pair][1];
    if (block && 8 * first >= (sent > kept ? sent : kept)) return;  // another pair has more blocks
    const Link& link = *pairs.link;
    Half& calls = reinterpret_cast<Half*>(pairs.link + 1)[SUM_BLOCKS + block * MAX_RANKS + other];
    const unsigned epoch = static_cast<unsigned>(calls) + 1;
    const Half stamp = static_cast<Half>(epoch) << 32;
    Packet* there = inbox(link, other, link.rank, epoch) + SUM_BLOCKS * CHUNK + first;
    const Packet* here = inbox(link, static_cast<int>(link.rank), other, epoch) + SUM_BLOCKS * CHUNK + first;
    for (int i = threadIdx.x; i < count_in_block((sent + 7) / 8, first, epoch); i += blockDim.x) {
        const int place = 2 * (first + i);
        send(there + i, stamp | word_of(source, place, sent), stamp | word_of(source, place + 1, sent));
    }
    for (int i = threadIdx.x; i < count_in_block((kept + 7) / 8, first, epoch); i += blockDim.x) {
        Packet packet;
        unsigned attempts = 0;
        WAIT_WHILE(!all_received(here + i, 0, 1, epoch, &packet) && (++attempts % LOOK || !*link.aborted));
        Payload value;
        value.words[0] = static_cast<unsigned>(packet.halves[0]);
        value.words[1] = static_cast<unsigned>(packet.halves[1]);
        keep_bytes(value, target, 2 * (first + i), kept);
    }
    __syncthreads();  // all threads have read the epoch
    if (threadIdx.x == 0) calls = epoch;
}
