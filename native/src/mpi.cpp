// The transport over MPI: the library that mpi4py has loaded, called through addresses that Python passes.
//
// MPI libraries differ in the type of handles: integers (MPICH and its descendants) or pointers (Open MPI, and the standard ABI of
// MPI 5). Everything here is a template over that type, so that one binary works with all of them. No constant of an MPI header is
// used: handles and addresses come from Python, and statuses are buffers larger than those of any library.
// Calls are nonblocking and polled, so that Python can look after long waits: every wait has a deadline.
#include <array>
#include <chrono>
#include <climits>
#include <thread>

#include "api.h"
#include "half.h"
#include "transport.h"

namespace collops {
namespace {

// In the order of _MPI_FUNCTIONS in src/collops/jax/native.py.
template <class H>
struct MpiFunctions {
  int (*iallreduce)(const void*, void*, int, H, H, H, H*);
  int (*ireduce)(const void*, void*, int, H, H, int, H, H*);
  int (*ibcast)(void*, int, H, int, H, H*);
  int (*iallgatherv)(const void*, int, H, void*, const int*, const int*, H, H, H*);
  int (*iallgather)(const void*, int, H, void*, int, H, H, H*);
  int (*igather)(const void*, int, H, void*, int, H, int, H, H*);
  int (*iscatter)(const void*, int, H, void*, int, H, int, H, H*);
  int (*ireduce_scatter)(const void*, void*, const int*, H, H, H, H*);
  int (*ialltoallv)(const void*, const int*, const int*, H, void*, const int*, const int*, H, H, H*);
  int (*isend)(const void*, int, H, int, int, H, H*);
  int (*irecv)(void*, int, H, int, int, H, H*);
  int (*ibarrier)(H, H*);
  int (*test)(H*, int*, void*);
  int (*error_string)(int, char*, int*);
  int (*op_create)(void (*)(void*, void*, int*, void*), int, H*);
};
constexpr int kFunctions = sizeof(MpiFunctions<int>) / sizeof(void*);

template <class H>
H handle_of(std::int64_t bits) {
  if constexpr (sizeof(H) == sizeof(int)) {
    return static_cast<H>(bits);
  } else {
    return reinterpret_cast<H>(static_cast<std::intptr_t>(bits));
  }
}

template <class H>
struct Library {
  MpiFunctions<H> call;
  std::array<H, kTypes> types;
  std::array<H, 5> moved;
  std::array<H, kOps> ops;
  std::array<std::array<H, 4>, 2> half_ops;
  void* in_place;

  H moved_type(int width) const {
    switch (width) {
      case 1: return moved[0];
      case 2: return moved[1];
      case 4: return moved[2];
      case 8: return moved[3];
      default: return moved[4];
    }
  }
  H op(Type type, Op op) const {
    if (type == Type::F16) return half_ops[0][static_cast<std::size_t>(op)];
    if (type == Type::BF16) return half_ops[1][static_cast<std::size_t>(op)];
    return ops[static_cast<std::size_t>(op)];
  }
};

template <class H>
Library<H>& library() {
  static Library<H> loaded{};
  return loaded;
}
int loaded_handle_bytes = 0;

std::vector<int> narrowed(const Counts& counts) { return {counts.begin(), counts.end()}; }

std::vector<int> offsets_of(const Counts& counts) {
  std::vector<int> offsets(counts.size());
  for (std::size_t i = 1; i < counts.size(); ++i) offsets[i] = offsets[i - 1] + static_cast<int>(counts[i - 1]);
  return offsets;
}

bool all_equal(const Counts& counts) {
  for (const std::int64_t count : counts) {
    if (count != counts[0]) return false;
  }
  return true;
}

template <class H>
class MpiTransport final : public Transport {
 public:
  MpiTransport(H comm, int rank, int size, int spins)
      : Transport(rank, size), comm_(comm), spins_(spins), mpi_(library<H>()) {}

  Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place) override {
    return in_pieces(in, out, count, type, [&](const void* from, void* to, int piece) {
      H request;
      const int code = mpi_.call.iallreduce(from == to ? mpi_.in_place : from, to, piece, mpi_type(type),
                                            mpi_.op(type, op), comm_, &request);
      return wait(code, &request, "allreduce");
    });
  }

  Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op op, int root, Place) override {
    return in_pieces(in, out, count, type, [&](const void* from, void* to, int piece) {
      H request;
      const int code = mpi_.call.ireduce(from == to && rank() == root ? mpi_.in_place : from, to, piece, mpi_type(type),
                                         mpi_.op(type, op), root, comm_, &request);
      return wait(code, &request, "reduce");
    });
  }

  Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place) override {
    if (rank() == root && in != out && count) std::memcpy(out, in, static_cast<std::size_t>(count * width));
    auto* to = static_cast<char*>(out);
    for (std::int64_t done = 0; done < count; done += kPiece) {
      const int piece = static_cast<int>(std::min<std::int64_t>(kPiece, count - done));
      H request;
      const int code = mpi_.call.ibcast(to + done * width, piece, mpi_.moved_type(width), root, comm_, &request);
      if (Failure failure = wait(code, &request, "bcast"); !failure.empty()) return failure;
    }
    return {};
  }

  Failure allgather(const void* in, void* out, const Counts& counts, int width, Place) override {
    if (Failure failure = too_many("allgather", counts); !failure.empty()) return failure;
    const H type = mpi_.moved_type(width);
    const int mine = static_cast<int>(counts[static_cast<std::size_t>(rank())]);
    H request;
    if (all_equal(counts)) {
      return wait(mpi_.call.iallgather(in, mine, type, out, mine, type, comm_, &request), &request, "allgather");
    }
    const std::vector<int> pieces = narrowed(counts);
    const std::vector<int> offsets = offsets_of(counts);
    const int code =
        mpi_.call.iallgatherv(in, mine, type, out, pieces.data(), offsets.data(), type, comm_, &request);
    return wait(code, &request, "allgatherv");
  }

  Failure gather(const void* in, void* out, std::int64_t count, int width, int root, Place) override {
    if (Failure failure = too_many("gather", {count}); !failure.empty()) return failure;
    const H type = mpi_.moved_type(width);
    const int piece = static_cast<int>(count);
    H request;
    return wait(mpi_.call.igather(in, piece, type, out, piece, type, root, comm_, &request), &request, "gather");
  }

  Failure scatter(const void* in, void* out, std::int64_t count, int width, int root, Place) override {
    if (Failure failure = too_many("scatter", {count}); !failure.empty()) return failure;
    const H type = mpi_.moved_type(width);
    const int piece = static_cast<int>(count);
    H request;
    return wait(mpi_.call.iscatter(in, piece, type, out, piece, type, root, comm_, &request), &request, "scatter");
  }

  Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place) override {
    if (Failure failure = too_many("reduce_scatter", counts); !failure.empty()) return failure;
    const std::vector<int> pieces = narrowed(counts);
    H request;
    const int code = mpi_.call.ireduce_scatter(in, out, pieces.data(), mpi_type(type), mpi_.op(type, op), comm_, &request);
    return wait(code, &request, "reduce_scatter");
  }

  Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts& arriving, int width, Place) override {
    if (Failure failure = too_many("alltoall", leaving); !failure.empty()) return failure;
    if (Failure failure = too_many("alltoall", arriving); !failure.empty()) return failure;
    const H type = mpi_.moved_type(width);
    const std::vector<int> sends = narrowed(leaving), receives = narrowed(arriving);
    const std::vector<int> from = offsets_of(leaving), to = offsets_of(arriving);
    H request;
    const int code = mpi_.call.ialltoallv(in, sends.data(), from.data(), type, out, receives.data(), to.data(), type,
                                          comm_, &request);
    return wait(code, &request, "alltoall");
  }

  Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place) override {
    std::vector<H> requests(receives.size() + sends.size());
    std::size_t started = 0;
    int code = 0;
    for (const Message& message : receives) {
      if (Failure failure = too_many("recv", {message.count}); !failure.empty()) return failure;
      code = mpi_.call.irecv(message.data, static_cast<int>(message.count), mpi_.moved_type(message.width),
                             message.peer, message.tag, comm_, &requests[started]);
      if (code) return failed(code, "recv");
      ++started;
    }
    for (const Message& message : sends) {
      if (Failure failure = too_many("send", {message.count}); !failure.empty()) return failure;
      code = mpi_.call.isend(message.data, static_cast<int>(message.count), mpi_.moved_type(message.width),
                             message.peer, message.tag, comm_, &requests[started]);
      if (code) return failed(code, "send");
      ++started;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const bool arriving = i < receives.size();
      Failure failure = wait(0, &requests[i], arriving ? "recv" : "send", arriving ? receives[i].status : nullptr);
      if (!failure.empty()) return failure;
    }
    return {};
  }

  Failure barrier(void*, Place) override {
    H request;
    return wait(mpi_.call.ibarrier(comm_, &request), &request, "barrier");
  }

 private:
  static constexpr std::int64_t kPiece = 1 << 30;  // MPI counts elements in ints

  H mpi_type(Type type) const { return mpi_.types[static_cast<std::size_t>(type)]; }

  template <class Call>
  Failure in_pieces(const void* in, void* out, std::int64_t count, Type type, Call call) {
    const std::int64_t width = width_of(type);
    std::int64_t done = 0;
    do {  // also for an empty array, since every rank takes part
      const int piece = static_cast<int>(std::min<std::int64_t>(kPiece, count - done));
      const void* from = static_cast<const char*>(in) + done * width;
      if (Failure failure = call(from, static_cast<char*>(out) + done * width, piece); !failure.empty()) return failure;
      done += kPiece;
    } while (done < count);
    return {};
  }

  static Failure too_many(const char* operation, const Counts& counts) {
    std::int64_t total = 0;
    for (const std::int64_t count : counts) total += count;
    if (total <= INT_MAX) return {};
    return std::string(operation) + ": " + std::to_string(total) +
           " elements exceed the limit of one MPI message; send them in parts";
  }

  Failure failed(int code, const char* operation) {
    char text[8192] = "";  // more than any library's MPI_MAX_ERROR_STRING
    int length = 0;
    mpi_.call.error_string(code, text, &length);
    return std::string(operation) + ": MPI reports: " + text;
  }

  Failure wait(int code, H* request, const char* operation, void* status = nullptr) {
    if (code) return failed(code, operation);
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    alignas(16) char ignored[256];
    if (status == nullptr) status = ignored;
    auto next_look = start + kLook;
    int looks = 0;
    for (std::int64_t polls = 0;; ++polls) {
      int done = 0;
      if (const int error = mpi_.call.test(request, &done, status)) return failed(error, operation);
      if (done) return {};
      if (polls < spins_) continue;
      if (polls < spins_ + kYields) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      const auto now = Clock::now();
      if (now < next_look) continue;
      const double seconds = std::chrono::duration<double>(now - start).count();
      if (Failure failure = look(looks++, seconds); !failure.empty()) return failure;
      next_look = Clock::now() + kLook;
    }
  }

  static constexpr int kYields = 2000;
  static constexpr std::chrono::milliseconds kLook{10};
  H comm_;
  std::int64_t spins_;
  const Library<H>& mpi_;
};

template <class H>
const char* load(const std::int64_t* functions, const std::int64_t* types, const std::int64_t* moved,
                 const std::int64_t* ops, std::int64_t in_place) {
  Library<H>& mpi = library<H>();
  std::array<void*, kFunctions> addresses;
  for (std::size_t i = 0; i < kFunctions; ++i) addresses[i] = reinterpret_cast<void*>(functions[i]);
  std::memcpy(&mpi.call, addresses.data(), sizeof mpi.call);
  for (std::size_t i = 0; i < kTypes; ++i) mpi.types[i] = handle_of<H>(types[i]);
  for (std::size_t i = 0; i < mpi.moved.size(); ++i) mpi.moved[i] = handle_of<H>(moved[i]);
  for (std::size_t i = 0; i < kOps; ++i) mpi.ops[i] = handle_of<H>(ops[i]);
  mpi.in_place = reinterpret_cast<void*>(static_cast<std::intptr_t>(in_place));
  using Function = void (*)(void*, void*, int*, void*);
  const Function halves[2][4] = {
      {reduce_half<Float16, Sum>, reduce_half<Float16, Product>, reduce_half<Float16, Minimum>,
       reduce_half<Float16, Maximum>},
      {reduce_half<BFloat16, Sum>, reduce_half<BFloat16, Product>, reduce_half<BFloat16, Minimum>,
       reduce_half<BFloat16, Maximum>},
  };
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      if (mpi.call.op_create(halves[i][j], 1, &mpi.half_ops[i][j])) return "MPI_Op_create failed";
    }
  }
  loaded_handle_bytes = sizeof(H);
  return nullptr;
}

}  // namespace
}  // namespace collops

const char* collops_load_mpi(int handle_bytes, const std::int64_t* functions, const std::int64_t* types,
                             const std::int64_t* moved, const std::int64_t* ops, std::int64_t in_place) {
  if (handle_bytes == sizeof(int)) return collops::load<int>(functions, types, moved, ops, in_place);
  if (handle_bytes == sizeof(void*)) return collops::load<void*>(functions, types, moved, ops, in_place);
  return "this MPI's handles are neither integers nor pointers";
}

std::int64_t collops_add_mpi(std::int64_t communicator, int rank, int size, int spins) {
  using namespace collops;
  if (loaded_handle_bytes == sizeof(int)) {
    return add_transport(std::make_unique<MpiTransport<int>>(handle_of<int>(communicator), rank, size, spins));
  }
  return add_transport(std::make_unique<MpiTransport<void*>>(handle_of<void*>(communicator), rank, size, spins));
}
