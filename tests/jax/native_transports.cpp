// Every call of the wires of the native library, under sanitizers: NCCL is played by threads that hand each other bytes, and
// CUDA by lists of what is to be done.
//
// Each rank of a size is a thread with a device number of its own. Blocks and messages have different lengths, some none.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "api.h"
#include "half.h"
#include "recordings.h"
#include "transport.h"

namespace {

using collops::Counts;
using collops::Message;
using collops::Op;
using collops::Place;
using collops::Type;
using Values = std::vector<float>;

struct World {
  int size;
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> letters;
};
struct Seat {
  World* world;
  int rank;
};
thread_local int depth = 0;
thread_local std::vector<std::function<void()>> waiting;  // receives of a group, which come after its sends

void put(Seat* seat, int peer, const void* from, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(seat->world->mutex);
  const auto* begin = static_cast<const char*>(from);
  seat->world->letters[{seat->rank, peer}].emplace_back(begin, begin + bytes);
  seat->world->arrived.notify_all();
}

void take(Seat* seat, int peer, void* to, std::size_t bytes) {
  std::unique_lock<std::mutex> lock(seat->world->mutex);
  auto& letters = seat->world->letters[{peer, seat->rank}];
  seat->world->arrived.wait(lock, [&] { return !letters.empty(); });
  if (letters.front().size() != bytes) {
    std::printf("%zu bytes arrived for %zu\n", letters.front().size(), bytes);
    std::abort();
  }
  if (bytes) std::memcpy(to, letters.front().data(), bytes);
  letters.pop_front();
}

// A graph is what NCCL was called for while its stream was captured.
using Graph = std::vector<std::function<void()>>;
struct Stream {
  bool captured = false;
  Graph calls;
};
struct Tally {
  int recorded = 0, launched = 0, destroyed = 0, alive = 0, most = 0;
};
thread_local Tally tally;
thread_local int broken_launch = 0, broken_call = 0;

int stream_create(void** stream, unsigned) { return *stream = new Stream, 0; }
int stream_is_capturing(void* stream, int* status) {
  *status = stream && static_cast<Stream*>(stream)->captured;
  return 0;
}
int begin_capture(void* stream, int) {
  static_cast<Stream*>(stream)->captured = true;
  return 0;
}
int end_capture(void* stream, void** graph) {
  auto* ended = static_cast<Stream*>(stream);
  ended->captured = false;
  *graph = new Graph(std::exchange(ended->calls, {}));
  return 0;
}
int graph_instantiate(void** made, void* graph, unsigned long long) {
  *made = new Graph(*static_cast<Graph*>(graph));
  ++tally.recorded;
  tally.most = std::max(tally.most, ++tally.alive);
  return 0;
}
int graph_launch(void* graph, void*) {
  if (broken_launch) return broken_launch;
  ++tally.launched;
  for (auto& call : *static_cast<Graph*>(graph)) call();
  return 0;
}
int graph_destroy(void* graph) { return delete static_cast<Graph*>(graph), 0; }
int graph_exec_destroy(void* graph) {
  ++tally.destroyed;
  --tally.alive;
  return graph_destroy(graph);
}

// Whether `call` is kept for later, because its stream is captured.
template <class F>
bool kept(void* stream, F call) {
  if (stream == nullptr || !static_cast<Stream*>(stream)->captured) return false;
  static_cast<Stream*>(stream)->calls.emplace_back(call);
  return true;
}

std::size_t width(int type) { return type == 7 ? 4 : 1; }

int send(const void* from, std::size_t count, int type, int peer, void* seat, void*) {
  put(static_cast<Seat*>(seat), peer, from, count * width(type));
  return 0;
}
int receive(void* to, std::size_t count, int type, int peer, void* seat, void*) {
  auto call = [=] { take(static_cast<Seat*>(seat), peer, to, count * width(type)); };
  if (depth == 0) call();
  if (depth > 0) waiting.emplace_back(call);
  return 0;
}
int group_start() { return ++depth, 0; }
int group_end() {
  if (--depth == 0) {
    for (auto& call : std::exchange(waiting, {})) call();
  }
  return 0;
}
int all_gather(const void* in, void* out, std::size_t count, int type, void* handle, void* stream) {
  if (kept(stream, [=] { all_gather(in, out, count, type, handle, nullptr); })) return 0;
  auto* seat = static_cast<Seat*>(handle);
  const std::size_t bytes = count * width(type);
  const std::vector<char> mine(static_cast<const char*>(in), static_cast<const char*>(in) + bytes);  // may be in place
  for (int peer = 0; peer < seat->world->size; ++peer) put(seat, peer, mine.data(), bytes);
  for (int peer = 0; peer < seat->world->size; ++peer) take(seat, peer, static_cast<char*>(out) + peer * bytes, bytes);
  return 0;
}
int all_reduce(const void* in, void* out, std::size_t count, int type, int op, void* handle, void* stream) {
  if (stream && broken_call) return broken_call;
  if (kept(stream, [=] { all_reduce(in, out, count, type, op, handle, nullptr); })) return 0;
  auto* seat = static_cast<Seat*>(handle);
  std::vector<char> all(count * width(type) * static_cast<std::size_t>(seat->world->size));
  all_gather(in, all.data(), count, type, handle, nullptr);
  if (type != 7) return 0;  // the barrier's byte
  const auto* values = reinterpret_cast<const float*>(all.data());
  for (std::size_t i = 0; i < count; ++i) {
    float result = values[i];
    for (std::size_t r = 1; r < static_cast<std::size_t>(seat->world->size); ++r) {
      const float other = values[r * count + i];
      result = op == 0 ? result + other : op == 1 ? result * other : op == 2 ? std::max(result, other) : std::min(result, other);
    }
    static_cast<float*>(out)[i] = result;
  }
  return 0;
}
int reduce(const void* in, void* out, std::size_t count, int type, int op, int root, void* handle, void* stream) {
  if (kept(stream, [=] { reduce(in, out, count, type, op, root, handle, nullptr); })) return 0;
  Values mine(count);
  all_reduce(in, mine.data(), count, type, op, handle, nullptr);
  if (static_cast<Seat*>(handle)->rank == root && count) std::memcpy(out, mine.data(), count * sizeof(float));
  return 0;
}
int broadcast(const void* in, void* out, std::size_t count, int type, int root, void* handle, void* stream) {
  if (kept(stream, [=] { broadcast(in, out, count, type, root, handle, nullptr); })) return 0;
  auto* seat = static_cast<Seat*>(handle);
  for (int peer = 0; seat->rank == root && peer < seat->world->size; ++peer) put(seat, peer, in, count * width(type));
  take(seat, root, out, count * width(type));
  return 0;
}
int reduce_scatter(const void* in, void* out, std::size_t count, int type, int op, void* handle, void* stream) {
  if (kept(stream, [=] { reduce_scatter(in, out, count, type, op, handle, nullptr); })) return 0;
  auto* seat = static_cast<Seat*>(handle);
  Values all(count * static_cast<std::size_t>(seat->world->size));
  all_reduce(in, all.data(), all.size(), type, op, handle, nullptr);
  if (count) std::memcpy(out, all.data() + static_cast<std::size_t>(seat->rank) * count, count * sizeof(float));
  return 0;
}
const char* error_string(int) { return "an error"; }
const char* last_error(void*) { return "the last error"; }

std::int64_t address(void* function) { return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(function)); }

void expect(const Values& found, const Values& expected, const char* what) {
  if (found == expected) return;
  std::printf("%s: wrong\n", what);
  std::exit(1);
}
void well(const collops::Failure& failure) {
  if (failure.empty()) return;
  std::printf("%s\n", failure.c_str());
  std::exit(1);
}
Values from(int rank, std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), 100.0F * static_cast<float>(rank));
  return values;
}

// The calls with equal blocks, which exist between devices of one process too.
void equal_blocks(collops::Transport& transport, int rank, Place at) {
  const int size = transport.size(), root = size - 1;
  const auto n = static_cast<std::size_t>(size), r = static_cast<std::size_t>(rank);
  const Values mine = from(rank, 3);
  Values sum(3), out(3), all(3 * n), gathered, pieces(2 * n), moved(2 * n), expected(2 * n);
  for (int other = 0; other < size; ++other) {
    const Values theirs = from(other, 3);
    for (std::size_t i = 0; i < 3; ++i) sum[i] += theirs[i];
    gathered.insert(gathered.end(), theirs.begin(), theirs.end());
  }
  well(transport.allreduce(mine.data(), out.data(), 3, Type::F32, Op::Sum, at));
  expect(out, sum, "allreduce");
  out = mine;
  well(transport.allreduce(out.data(), out.data(), 3, Type::F32, Op::Max, at));
  expect(out, from(root, 3), "allreduce in place");
  well(transport.allreduce(nullptr, nullptr, 0, Type::F32, Op::Sum, at));
  for (const int sender : {0, root}) {
    out = {-1, -1, -1};
    well(transport.bcast(mine.data(), out.data(), 3, 4, sender, at));
    expect(out, from(sender, 3), "bcast");
  }
  well(transport.allgather(mine.data(), all.data(), Counts(n, 3), 4, at));
  expect(all, gathered, "allgather");
  well(transport.reduce_scatter(gathered.data(), out.data(), Counts(n, 3), Type::F32, Op::Min, at));
  expect(out, mine, "reduce_scatter");
  for (std::size_t i = 0; i < 2 * n; ++i) {  // two elements from each party to each, which tell both
    pieces[i] = static_cast<float>(100 * r + i);
    expected[i] = static_cast<float>(100 * (i / 2) + 2 * r + i % 2);
  }
  well(transport.alltoall(pieces.data(), moved.data(), Counts(n, 2), Counts(n, 2), 4, at));
  expect(moved, expected, "alltoall");
  char scratch = 0;
  well(transport.barrier(&scratch, at));
}

void every_call(collops::Transport& transport, int rank, Place at) {
  equal_blocks(transport, rank, at);
  const int size = transport.size(), after = (rank + 1) % size, before = (rank + size - 1) % size, root = size - 1;
  const auto n = static_cast<std::size_t>(size), r = static_cast<std::size_t>(rank);
  const Values mine = from(rank, 3);
  Values sum(3), out(3), all(3 * n), gathered;
  for (int other = 0; other < size; ++other) {
    const Values theirs = from(other, 3);
    for (std::size_t i = 0; i < 3; ++i) sum[i] += theirs[i];
    gathered.insert(gathered.end(), theirs.begin(), theirs.end());
  }
  well(transport.reduce(mine.data(), out.data(), 3, Type::F32, Op::Sum, root, at));
  if (rank == root) expect(out, sum, "reduce");
  well(transport.gather(mine.data(), rank == root ? all.data() : nullptr, 3, 4, root, at));
  if (rank == root) expect(all, gathered, "gather");
  well(transport.scatter(rank == root ? gathered.data() : nullptr, out.data(), 3, 4, root, at));
  expect(out, mine, "scatter");

  Counts uneven(n), leaving(n), arriving(n);  // rank s has s % 3 elements, and sends (s + 2 p) % 3 to rank p
  std::size_t total = 0, start = 0;
  Values wanted, pieces, expected;
  for (std::size_t s = 0; s < n; ++s) {
    uneven[s] = static_cast<std::int64_t>(s % 3);
    leaving[s] = static_cast<std::int64_t>((r + 2 * s) % 3);
    arriving[s] = static_cast<std::int64_t>((s + 2 * r) % 3);
    const Values theirs = from(static_cast<int>(s), s % 3);
    wanted.insert(wanted.end(), theirs.begin(), theirs.end());
    pieces.insert(pieces.end(), static_cast<std::size_t>(leaving[s]), static_cast<float>(10 * r + s));
    expected.insert(expected.end(), static_cast<std::size_t>(arriving[s]), static_cast<float>(10 * s + r));
    start += s < r ? s % 3 : 0;
    total += s % 3;
  }
  const Values own = from(rank, r % 3);
  Values result(total), part(r % 3), moved(expected.size());
  well(transport.allgather(own.data(), result.data(), uneven, 4, at));
  expect(result, wanted, "allgatherv");
  well(transport.reduce_scatter(wanted.data(), part.data(), uneven, Type::F32, Op::Max, at));
  expect(part, {wanted.begin() + static_cast<long>(start), wanted.begin() + static_cast<long>(start + r % 3)}, "reduce_scatterv");
  well(transport.alltoall(pieces.data(), moved.data(), leaving, arriving, 4, at));
  expect(moved, expected, "alltoallv");

  Values short_one(1), long_one(3), given = mine;
  well(transport.exchange({{after, 1, given.data(), 3, 4}, {before, 2, given.data(), 1, 4}},
                     {{before, 1, long_one.data(), 3, 4}, {after, 2, short_one.data(), 1, 4}}, at));
  expect(long_one, from(before, 3), "exchange");
  expect(short_one, from(after, 1), "exchange");
  well(transport.exchange({}, {}, at));
}

// Ranks with `counts` devices each: a thread for each device, and NCCL's threads as the ranks.
void devices_of_ranks(const Counts& counts) {
  World world{static_cast<int>(counts.size()), {}, {}, {}};
  std::vector<Seat> seats;
  for (int rank = 0; rank < world.size; ++rank) seats.push_back({&world, rank});
  std::vector<std::thread> threads;
  int party = 0;
  for (int rank = 0; rank < world.size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::int64_t communicator = address(&seats[r]);
    const int device = 0;
    const auto between = collops_add_nccl(&communicator, &device, &rank, 1, world.size, 0);
    std::vector<int> devices;
    for (std::int64_t i = 0; i < counts[r]; ++i) devices.push_back(9 - static_cast<int>(i));
    auto* transport = collops::find_transport(collops_add_devices(between, devices.data(), counts.data(), 60));
    for (const int number : devices) {
      threads.emplace_back([=] {
        for (int turn = 0; turn < 20; ++turn) equal_blocks(*transport, party, Place{nullptr, number});
      });
      ++party;
    }
  }
  for (auto& thread : threads) thread.join();
}

// Devices that make different calls, and one that makes none: an error for all of them, and nothing is combined.
void devices_that_disagree() {
  const std::int64_t two = 2;
  const int devices[] = {0, 1};
  const auto alone = collops_add_alone();
  const auto made = [&](double timeout) { return collops::find_transport(collops_add_devices(alone, devices, &two, timeout)); };
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  auto* transport = made(60);
  Values values(3), out(3);
  std::string failures[2];
  std::thread other([&] { failures[0] = transport->allreduce(values.data(), out.data(), 3, Type::F32, Op::Sum, Place{nullptr, 0}); });
  Values others(2), result(2);
  failures[1] = transport->allreduce(others.data(), result.data(), 2, Type::F32, Op::Sum, Place{nullptr, 1});
  other.join();
  if (failures[0] != failures[1] || !contains(failures[0], "but another one of this process")) std::abort();
  if (transport->barrier(nullptr, Place{nullptr, 0}) != failures[0]) std::abort();

  transport = made(0.05);
  if (!contains(transport->barrier(nullptr, Place{nullptr, 1}), "only 1 of 2 devices of this rank")) std::abort();
  transport = made(60);
  if (!contains(transport->barrier(nullptr, Place{nullptr, 2}), "not part of this communicator")) std::abort();
  if (!contains(transport->gather(nullptr, nullptr, 0, 4, 0, Place{}), "not available")) std::abort();
}

// The same call again and again, on each rank with as many results in turn as its number says: some ranks launch what others
// still call NCCL for.
void again(collops::Transport& transport, int rank, Place at) {
  const int size = transport.size();
  const float sum = static_cast<float>(size * (size + 1) / 2);
  const std::size_t results = 1 + 90 * static_cast<std::size_t>(rank);  // two ranks have more than are kept
  Values mine(5, static_cast<float>(rank + 1)), all(5 * results);
  tally = {};
  for (std::size_t turn = 0; turn < 400; ++turn) {
    float* out = all.data() + 5 * (turn % results);
    std::fill(out, out + 5, 0.0F);
    well(transport.allreduce(mine.data(), out, 5, Type::F32, Op::Sum, at));
    expect({out, out + 5}, Values(5, sum), "allreduce again");
  }
  const int before = collops::Recordings::kCallsBefore;
  const bool kept = results <= collops::Recordings::kMost;
  const int recorded = kept ? static_cast<int>(results) : 0;
  const int launched = kept ? 400 - before * static_cast<int>(results) : 0;
  if (tally.recorded != recorded || tally.launched != launched) std::abort();

  Stream captured;  // by XLA: a graph is never launched there
  captured.captured = true;
  float* out = all.data();
  well(transport.allreduce(mine.data(), out, 5, Type::F32, Op::Sum, Place{&captured, at.device}));
  if (captured.calls.size() != 1 || tally.launched != launched) std::abort();
  for (auto& call : captured.calls) call();

  Values longer(300000);  // more than a call of NCCL is worth
  for (int turn = 0; turn < 4; ++turn) {
    well(transport.allreduce(longer.data(), longer.data(), 300000, Type::F32, Op::Max, at));
  }
  if (tally.recorded != recorded) std::abort();

  for (int turn = 0; turn < 3; ++turn) {  // what differs in anything is another call
    for (const Op op : {Op::Sum, Op::Max}) {
      for (const std::int64_t count : {3, 4}) {
        well(transport.allreduce(mine.data(), out, count, Type::F32, op, at));
        const float result = op == Op::Sum ? sum : static_cast<float>(size);
        expect({out, out + count}, Values(static_cast<std::size_t>(count), result), "another allreduce");
        for (const int root : {0, size - 1}) {
          well(transport.bcast(mine.data(), out, count, 4, root, at));
          expect({out, out + count}, Values(static_cast<std::size_t>(count), static_cast<float>(root + 1)), "bcast");
        }
      }
    }
  }
  if (tally.most > static_cast<int>(collops::Recordings::kMost)) std::abort();

  Values once(2, 1.0F), sums(2);
  for (int turn = 0; turn < 5; ++turn) {  // the third is to be recorded, which fails, and the fourth is
    broken_call = turn == 2 ? 5 : 0;
    const collops::Failure failure = transport.allreduce(once.data(), sums.data(), 2, Type::F32, Op::Sum, at);
    if (failure != (turn == 2 ? "allreduce: NCCL reports: an error (the last error)" : "")) std::abort();
    if (turn != 2) expect(sums, Values(2, static_cast<float>(size)), "allreduce after a failure");
    std::fill(sums.begin(), sums.end(), 0.0F);
  }

  broken_launch = 700;
  const collops::Failure failure = transport.allreduce(mine.data(), out, 3, Type::F32, Op::Sum, at);
  if (failure != "allreduce: CUDA reports error 700 for a recorded NCCL call") std::abort();
  broken_launch = 0;
}

void halves() {  // every 16-bit number survives being widened
  for (std::uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool odd_nan = std::isnan(collops::Float16::widen(half)), brain_nan = std::isnan(collops::BFloat16::widen(half));
    if (!odd_nan && collops::Float16::narrow(collops::Float16::widen(half)) != half) std::abort();
    if (!brain_nan && collops::BFloat16::narrow(collops::BFloat16::widen(half)) != half) std::abort();
  }
  std::uint16_t left[3] = {0x3c00, 0x7bff, 0x0001}, right[3] = {0x4000, 0x7bff, 0x0001};  // 1 + 2, an overflow, subnormals
  int count = 3;
  collops::reduce_half<collops::Float16, collops::Sum>(left, right, &count, nullptr);
  if (right[0] != 0x4200 || right[1] != 0x7c00 || right[2] != 0x0002) std::abort();
}

template <class F>
std::int64_t at(F* function) {
  return address(reinterpret_cast<void*>(function));
}

}  // namespace

int main() {
  halves();
  const std::int64_t functions[] = {at(all_reduce), at(reduce), at(broadcast), at(all_gather), at(reduce_scatter),
                                    at(send), at(receive), at(group_start), at(group_end), at(error_string), at(last_error)};
  collops_load_nccl(functions);
  const std::int64_t graphs[] = {at(stream_create), at(stream_is_capturing), at(begin_capture), at(end_capture),
                                 at(graph_instantiate), at(graph_launch), at(graph_destroy), at(graph_exec_destroy)};
  if (collops::can_record()) std::abort();
  collops_load_cuda(graphs);
  every_call(*collops::find_transport(collops_add_alone()), 0, {});
  for (int size = 1; size <= 4; ++size) {
    World world{size, {}, {}, {}};
    std::vector<Seat> seats;
    std::vector<std::int64_t> communicators;
    std::vector<int> devices, ranks;
    for (int rank = 0; rank < size; ++rank) seats.push_back({&world, rank});
    for (int rank = 0; rank < size; ++rank) {
      communicators.push_back(address(&seats[static_cast<std::size_t>(rank)]));
      devices.push_back(7 - rank);
      ranks.push_back(rank);
    }
    collops::Transport* transport = nullptr;
    for (const int record : {0, 1}) {
      const auto number = collops_add_nccl(communicators.data(), devices.data(), ranks.data(), size, size, record);
      transport = collops::find_transport(number);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([=] {
          const Place place{nullptr, 7 - rank};
          for (int turn = 0; turn < 4; ++turn) every_call(*transport, rank, place);
          if (record) again(*transport, rank, place);
          if (!record && tally.recorded) std::abort();
        });
      }
      for (auto& thread : threads) thread.join();
    }
    for (auto& [ends, letters] : world.letters) {
      if (!letters.empty()) std::abort();
    }
    if (size > 1 && transport->barrier(nullptr, Place{nullptr, 99}).empty()) std::abort();  // no such device
  }
  for (const Counts& counts : {Counts{1}, Counts{4}, Counts{2, 2}, Counts{1, 3, 2}}) devices_of_ranks(counts);
  devices_that_disagree();
  if (collops::find_transport(-1) || collops::find_transport(1000)) std::abort();
  std::printf("all right\n");
  return 0;
}
