// The transport between the host devices of one process and, if it is one of several ranks, those of the other ranks.
//
// XLA runs a program on each device in a thread. The last device that arrives at a call makes it for all of them: it combines their
// arrays, sends one message to the other ranks, and distributes the result, while the others wait. All devices run one program, so
// that only calls with equal blocks and equal arguments exist.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "api.h"
#include "half.h"
#include "transport.h"

namespace collops {
namespace {

// Reduces `count` elements of `from` into `into`.
template <class T, class Function>
bool each(void* into, const void* from, std::int64_t count, Function function) {
  auto* to = static_cast<T*>(into);
  const auto* other = static_cast<const T*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i] = function(to[i], other[i]);
  return true;
}

template <class T>
bool integers(void* into, const void* from, std::int64_t count, Op op) {
  using Wide = std::uint64_t;  // overflow is defined, and wraps around as in NumPy
  switch (op) {
    case Op::Sum: return each<T>(into, from, count, [](T a, T b) { return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b)); });
    case Op::Prod: return each<T>(into, from, count, [](T a, T b) { return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b)); });
    case Op::Min: return each<T>(into, from, count, [](T a, T b) { return a < b ? a : b; });
    case Op::Max: return each<T>(into, from, count, [](T a, T b) { return a > b ? a : b; });
    case Op::LAnd: return each<T>(into, from, count, [](T a, T b) { return static_cast<T>(a && b); });
    case Op::LOr: return each<T>(into, from, count, [](T a, T b) { return static_cast<T>(a || b); });
    case Op::LXor: return each<T>(into, from, count, [](T a, T b) { return static_cast<T>(!a != !b); });
  }
  return false;
}

template <class T>
bool reals(void* into, const void* from, std::int64_t count, Op op) {
  switch (op) {
    case Op::Sum: return each<T>(into, from, count, [](T a, T b) { return a + b; });
    case Op::Prod: return each<T>(into, from, count, [](T a, T b) { return a * b; });
    case Op::Min: return each<T>(into, from, count, [](T a, T b) { return std::isnan(a) || a < b ? a : b; });
    case Op::Max: return each<T>(into, from, count, [](T a, T b) { return std::isnan(a) || a > b ? a : b; });
    default: return false;
  }
}

template <class Half>
bool halves(void* into, const void* from, std::int64_t count, Op op) {
  const auto with = [&](auto step) {
    return each<std::uint16_t>(into, from, count, [](std::uint16_t a, std::uint16_t b) {
      return Half::narrow(decltype(step)::apply(Half::widen(a), Half::widen(b)));
    });
  };
  switch (op) {
    case Op::Sum: return with(Sum{});
    case Op::Prod: return with(Product{});
    case Op::Min: return with(Minimum{});
    case Op::Max: return with(Maximum{});
    default: return false;
  }
}

template <class T>
bool complexes(void* into, const void* from, std::int64_t count, Op op) {
  return op == Op::Sum && each<std::complex<T>>(into, from, count, [](auto a, auto b) { return a + b; });
}

// Returns whether the operation exists for the type.
bool combine(void* into, const void* from, std::int64_t count, Type type, Op op) {
  switch (type) {
    case Type::Bool: return integers<bool>(into, from, count, op);
    case Type::I8: return integers<std::int8_t>(into, from, count, op);
    case Type::I16: return integers<std::int16_t>(into, from, count, op);
    case Type::I32: return integers<std::int32_t>(into, from, count, op);
    case Type::I64: return integers<std::int64_t>(into, from, count, op);
    case Type::U8: return integers<std::uint8_t>(into, from, count, op);
    case Type::U16: return integers<std::uint16_t>(into, from, count, op);
    case Type::U32: return integers<std::uint32_t>(into, from, count, op);
    case Type::U64: return integers<std::uint64_t>(into, from, count, op);
    case Type::F16: return halves<Float16>(into, from, count, op);
    case Type::BF16: return halves<BFloat16>(into, from, count, op);
    case Type::F32: return reals<float>(into, from, count, op);
    case Type::F64: return reals<double>(into, from, count, op);
    case Type::C64: return complexes<float>(into, from, count, op);
    case Type::C128: return complexes<double>(into, from, count, op);
    default: return false;
  }
}

void copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes && to != from) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

char* at_byte(void* start, std::int64_t bytes) { return static_cast<char*>(start) + bytes; }
const char* at_byte(const void* start, std::int64_t bytes) { return static_cast<const char*>(start) + bytes; }

// A call, without the arrays of the device that makes it.
struct What {
  const char* name = "";
  std::int64_t count = 0;
  int width = 1;
  Type type = Type::U8;
  Op op = Op::Sum;
  int root = 0;

  bool operator==(const What& other) const {
    return std::strcmp(name, other.name) == 0 && count == other.count && width == other.width && type == other.type &&
           op == other.op && root == other.root;
  }
  std::string text() const {
    return std::string(name) + " of " + std::to_string(count) + " elements of " + std::to_string(width) + " bytes";
  }
};

struct Visit {
  bool here = false;
  const void* in = nullptr;
  void* out = nullptr;
};
using Visits = std::vector<Visit>;

// One call of all devices of the process.
struct Meeting {
  explicit Meeting(std::size_t devices) : visits(devices) {}
  Visits visits;
  What what;
  std::size_t arrived = 0;
  bool done = false;
  Failure outcome;
};

class DevicesTransport final : public Transport {
 public:
  // `devices` are those of this process; the party with number i of rank r is `starts[r] + i` in the group.
  DevicesTransport(Transport& between, std::vector<int> devices, Counts counts, Counts starts, int size, double timeout)
      : Transport(static_cast<int>(starts[static_cast<std::size_t>(between.rank())]), size),
        between_(between),
        devices_(std::move(devices)),
        counts_(std::move(counts)),
        starts_(std::move(starts)),
        timeout_(timeout),
        calls_of_(devices_.size()),
        current_(std::make_shared<Meeting>(devices_.size())) {}

  // The last device begins the call between the ranks.
  Failure begin(std::string_view call, bool, Place at) override {
    if (const auto seat = seat_of(at); seat < calls_of_.size()) calls_of_[seat] = call;
    return {};
  }

  Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place at) override {
    return meet({"allreduce", count, width_of(type), type, op}, in, out, at, [&](Visits& visits) -> Failure {
      void* to = visits[0].out;
      if (!reduced_here(visits, to, count, type, op)) return no_reduction("allreduce");
      if (Failure failure = between_.allreduce(to, to, count, type, op, {}); !failure.empty()) return failure;
      return to_all(visits, count * width_of(type));
    });
  }

  Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return meet({"bcast", count, width, Type::U8, Op::Sum, root}, in, out, at, [&](Visits& visits) -> Failure {
      int owner = 0;
      while (root >= starts_[index(owner)] + counts_[index(owner)]) ++owner;
      const auto place = owner == between_.rank() ? index(root - starts_[index(owner)]) : 0;
      const Failure failure = between_.bcast(visits[place].in, visits[0].out, count, width, owner, {});
      return failure.empty() ? to_all(visits, count * width) : failure;
    });
  }

  Failure allgather(const void* in, void* out, const Counts& counts, int width, Place at) override {
    const std::int64_t each = counts[0];
    return meet({"allgather", each, width}, in, out, at, [&](Visits& visits) -> Failure {
      std::vector<char> mine(index(here() * each * width));
      for (std::int64_t i = 0; i < here(); ++i) copy(mine.data() + i * each * width, visits[index(i)].in, each * width);
      const Failure failure = between_.allgather(mine.data(), visits[0].out, of_ranks(each), width, {});
      return failure.empty() ? to_all(visits, size() * each * width) : failure;
    });
  }

  Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place at) override {
    const std::int64_t each = counts[0];
    const int width = width_of(type);
    return meet({"reduce_scatter", each, width, type, op}, in, out, at, [&](Visits& visits) -> Failure {
      std::vector<char> sum(index(size() * each * width)), mine(index(here() * each * width));
      if (!reduced_here(visits, sum.data(), size() * each, type, op)) return no_reduction("reduce_scatter");
      const Failure failure = between_.reduce_scatter(sum.data(), mine.data(), of_ranks(each), type, op, {});
      for (std::int64_t i = 0; i < here(); ++i) copy(visits[index(i)].out, mine.data() + i * each * width, each * width);
      return failure;
    });
  }

  Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts&, int width, Place at) override {
    const std::int64_t bytes = leaving[0] * width;  // of a block, the message from one device to another
    return meet({"alltoall", leaving[0], width}, in, out, at, [&](Visits& visits) -> Failure {
      std::vector<char> sent(index(here() * size() * bytes)), received(sent.size());
      const Counts messages = of_ranks(here() * leaving[0]);
      char* to = sent.data();
      for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
        for (const Visit& visit : visits) {
          copy(to, at_byte(visit.in, starts_[rank] * bytes), counts_[rank] * bytes);
          to += counts_[rank] * bytes;
        }
      }
      const Failure failure = between_.alltoall(sent.data(), received.data(), messages, messages, width, {});
      const char* from = received.data();
      for (std::int64_t party = 0; party < size(); ++party) {
        for (const Visit& visit : visits) {
          copy(at_byte(visit.out, party * bytes), from, bytes);
          from += bytes;
        }
      }
      return failure;
    });
  }

  Failure barrier(void*, Place at) override {
    char scratch = 0;
    return meet({"barrier"}, nullptr, nullptr, at, [&](Visits&) { return between_.barrier(&scratch, {}); });
  }

  // Their arguments depend on the rank, but all devices run one program. NativeComm.rank in communicators.py raises before.
  Failure reduce(const void*, void*, std::int64_t, Type, Op, int, Place) override { return one_program("reduce"); }
  Failure gather(const void*, void*, std::int64_t, int, int, Place) override { return one_program("gather"); }
  Failure scatter(const void*, void*, std::int64_t, int, int, Place) override { return one_program("scatter"); }
  Failure exchange(const std::vector<Message>&, const std::vector<Message>&, Place) override {
    return one_program("exchange");
  }

 private:
  static std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }
  std::int64_t here() const { return static_cast<std::int64_t>(devices_.size()); }

  static Failure one_program(const char* operation) {
    return std::string(operation) + ": not available between the devices of a process";
  }
  static Failure no_reduction(const char* operation) {
    return std::string(operation) + ": this reduction is not defined for this dtype";
  }

  // The numbers of elements of all ranks, for `each` of a device.
  Counts of_ranks(std::int64_t each) const {
    Counts all = counts_;
    for (std::int64_t& count : all) count *= each;
    return all;
  }

  static bool reduced_here(const Visits& visits, void* to, std::int64_t count, Type type, Op op) {
    copy(to, visits[0].in, count * width_of(type));
    for (std::size_t i = 1; i < visits.size(); ++i) {
      if (!combine(to, visits[i].in, count, type, op)) return false;
    }
    return true;
  }

  static Failure to_all(const Visits& visits, std::int64_t bytes) {
    for (std::size_t i = 1; i < visits.size(); ++i) copy(visits[i].out, visits[0].out, bytes);
    return {};
  }

  std::size_t seat_of(Place at) const {
    return index(std::find(devices_.begin(), devices_.end(), at.device) - devices_.begin());
  }

  // Waits until all devices of this process have made the call. The last one runs `job`, whose outcome is that of all.
  template <class Job>
  Failure meet(const What& what, const void* in, void* out, Place at, Job job) {
    const auto seat = seat_of(at);
    if (seat == devices_.size()) {
      return std::string(what.name) + ": device " + std::to_string(at.device) + " is not part of this communicator";
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const std::shared_ptr<Meeting> meeting = current_;
    if (meeting->done) return meeting->outcome;  // it has failed, and no other one follows
    if (meeting->arrived == 0) meeting->what = what;
    Visit& visit = meeting->visits[seat];
    if (visit.here || !(meeting->what == what)) {
      return end(*meeting, differs(calls_of_[seat], "device " + std::to_string(at.device) + " makes the call " + what.text() +
                                                        ", but another one of this process " + meeting->what.text()));
    }
    visit = {true, in, out};
    if (++meeting->arrived == devices_.size()) {
      current_ = std::make_shared<Meeting>(devices_.size());
      lock.unlock();
      Failure outcome = between_.begin(calls_of_[seat], true, {});
      if (outcome.empty()) outcome = job(meeting->visits);
      lock.lock();
      return end(*meeting, std::move(outcome));
    }
    // The first device looks after the wait of all. A call that has begun ends by the deadline of the transport between the ranks.
    const bool looks_after = meeting->arrived == 1;
    const auto settled = [&] { return meeting->done || meeting->arrived == devices_.size(); };
    const auto start = std::chrono::steady_clock::now();
    for (int looks = 0; looks_after && !arrivals_.wait_for(lock, kLook, settled); ++looks) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      Failure failure = overdue(*meeting, calls_of_[seat], looks, waited.count());
      if (!failure.empty()) return end(*meeting, std::move(failure));
    }
    arrivals_.wait(lock, [&] { return meeting->done; });
    return meeting->outcome;
  }

  // Why a wait for other devices of this process must end, or empty.
  Failure overdue(const Meeting& meeting, std::string_view call, int looks, double seconds) {
    const std::string note = std::to_string(meeting.arrived) + " of " + std::to_string(here()) + " devices of this rank";
    if (between_.watched()) return between_.look_before(call, looks, seconds, note);
    if (timeout_ <= 0 || seconds < timeout_) return {};
    char deadline[64];
    std::snprintf(deadline, sizeof deadline, "the deadline is %g s (COLLOPS_TIMEOUT)", timeout_);
    return "CommunicationTimeout: " + meeting.what.text() + ": only " + note + " make this call; " + deadline;
  }

  // The failure of devices whose calls differ, on all ranks if they are watched.
  Failure differs(std::string_view call, const std::string& why) {
    return between_.watched() ? between_.look_before(call, kDiffer, 0.0, why) : "CommunicationError: " + why;
  }

  Failure end(Meeting& meeting, Failure outcome) {
    meeting.outcome = std::move(outcome);
    meeting.done = true;
    arrivals_.notify_all();
    return meeting.outcome;
  }

  static constexpr std::chrono::milliseconds kLook{10};
  Transport& between_;
  const std::vector<int> devices_;
  const Counts counts_;
  const Counts starts_;
  const double timeout_;
  std::vector<std::string_view> calls_of_;  // of the devices, by Python's texts
  std::mutex mutex_;
  std::condition_variable arrivals_;
  std::shared_ptr<Meeting> current_;
};

}  // namespace
}  // namespace collops

std::int64_t collops_add_devices(std::int64_t between, const int* devices, const std::int64_t* counts, double timeout) {
  using namespace collops;
  Transport& ranks = *find_transport(between);
  const Counts all(counts, counts + ranks.size());
  Counts starts;
  std::int64_t size = 0;
  for (const std::int64_t count : all) {
    starts.push_back(size);
    size += count;
  }
  std::vector<int> own(devices, devices + all[static_cast<std::size_t>(ranks.rank())]);
  return add_transport(std::make_unique<DevicesTransport>(ranks, std::move(own), all, std::move(starts),
                                                          static_cast<int>(size), timeout));
}
