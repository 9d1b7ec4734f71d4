// The transport over NCCL, or RCCL, which has the same functions: every call is enqueued on XLA's stream; the host never waits.
//
// No header of CUDA or NCCL is used: functions are called through addresses from Python, and the few types that they take are
// declared here. Data that are not reduced are sent as bytes. A process may drive several devices: each has its own communicator,
// and XLA passes the device to the handler.
#include <algorithm>
#include <cstring>
#include <map>

#include "api.h"
#include "recordings.h"
#include "transport.h"

namespace collops {
namespace {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t or hipStream_t

// In the order of _NCCL_FUNCTIONS in src/collops/jax/devices.py.
struct NcclFunctions {
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Comm, Stream);
  int (*reduce)(const void*, void*, std::size_t, int, int, int, Comm, Stream);
  int (*broadcast)(const void*, void*, std::size_t, int, int, Comm, Stream);
  int (*all_gather)(const void*, void*, std::size_t, int, Comm, Stream);
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, Comm, Stream);
  int (*send)(const void*, std::size_t, int, int, Comm, Stream);
  int (*receive)(void*, std::size_t, int, int, Comm, Stream);
  int (*group_start)();
  int (*group_end)();
  const char* (*error_string)(int);
  const char* (*last_error)(Comm);
};
constexpr int kFunctions = sizeof(NcclFunctions) / sizeof(void*);
constexpr int kBytes = 1;  // ncclUint8
constexpr std::size_t kMostRecorded = 1 << 20;  // bytes: with longer messages, the device needs more time than the host

NcclFunctions nccl{};

struct Numbers {
  int type = -1;         // ncclDataType_t
  std::size_t each = 1;  // number of them per element
  std::size_t width = 1;
};

Numbers numbers_of(Type type) {
  switch (type) {
    case Type::I8: return {0, 1, 1};
    case Type::U8: return {1, 1, 1};
    case Type::I32: return {2, 1, 4};
    case Type::U32: return {3, 1, 4};
    case Type::I64: return {4, 1, 8};
    case Type::U64: return {5, 1, 8};
    case Type::F16: return {6, 1, 2};
    case Type::F32: return {7, 1, 4};
    case Type::F64: return {8, 1, 8};
    case Type::BF16: return {9, 1, 2};
    case Type::C64: return {7, 2, 8};
    case Type::C128: return {8, 2, 16};
    default: return {};
  }
}

int operation_of(Op op) {
  switch (op) {
    case Op::Sum: return 0;
    case Op::Prod: return 1;
    case Op::Max: return 2;
    case Op::Min: return 3;
    default: return -1;
  }
}

struct Seat {
  Comm comm;
  int rank;
  std::unique_ptr<Recordings> recordings;  // null if calls may not be recorded
};

// The operations that can be recorded: a few numbers determine a call.
enum class Operation : int { None, Allreduce, Reduce, Bcast, Allgather, ReduceScatter, Barrier };

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::map<int, Seat> seats, int size) : Transport(seats.begin()->second.rank, size), seats_(std::move(seats)) {}

  Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place at) override {
    const Call again = repeated(Operation::Allreduce, in, out, count, type, op);
    return reducing("allreduce", type, op, at, again, [&](const Numbers& of, int operation, const Seat& seat, Stream stream) {
      return nccl.all_reduce(in, out, of.each * size_of(count), of.type, operation, seat.comm, stream);
    });
  }

  Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op op, int root, Place at) override {
    const Call again = repeated(Operation::Reduce, in, out, count, type, op, root);
    return reducing("reduce", type, op, at, again, [&](const Numbers& of, int operation, const Seat& seat, Stream stream) {
      return nccl.reduce(in, out, of.each * size_of(count), of.type, operation, root, seat.comm, stream);
    });
  }

  Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    const Call again = repeated(Operation::Bcast, in, out, count * width, Type::U8, Op::Sum, root);
    return moving("bcast", at, again, [&](const Seat& seat, Stream stream) {
      return nccl.broadcast(in, out, size_of(count * width), kBytes, root, seat.comm, stream);
    });
  }

  Failure allgather(const void* in, void* out, const Counts& counts, int width, Place at) override {
    const bool equal = all_equal(counts);
    const Call again = equal ? repeated(Operation::Allgather, in, out, counts[0] * width, Type::U8) : Call{};
    return moving("allgather", at, again, [&](const Seat& seat, Stream stream) {
      if (equal) return nccl.all_gather(in, out, size_of(counts[0] * width), kBytes, seat.comm, stream);
      return grouped([&] {
        auto* to = static_cast<char*>(out);
        for (int peer = 0; peer < size(); ++peer) {
          const std::size_t mine = size_of(counts[static_cast<std::size_t>(seat.rank)] * width);
          const std::size_t theirs = size_of(counts[static_cast<std::size_t>(peer)] * width);
          if (int code = send(in, mine, peer, seat, stream)) return code;
          if (int code = receive(to, theirs, peer, seat, stream)) return code;
          to += theirs;
        }
        return 0;
      });
    });
  }

  Failure gather(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return moving("gather", at, Call{}, [&](const Seat& seat, Stream stream) {
      return grouped([&] {
        const std::size_t bytes = size_of(count * width);
        if (int code = send(in, bytes, root, seat, stream)) return code;
        for (int peer = 0; seat.rank == root && peer < size(); ++peer) {
          if (int code = receive(static_cast<char*>(out) + size_of(peer) * bytes, bytes, peer, seat, stream)) return code;
        }
        return 0;
      });
    });
  }

  Failure scatter(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return moving("scatter", at, Call{}, [&](const Seat& seat, Stream stream) {
      return grouped([&] {
        const std::size_t bytes = size_of(count * width);
        for (int peer = 0; seat.rank == root && peer < size(); ++peer) {
          if (int code = send(static_cast<const char*>(in) + size_of(peer) * bytes, bytes, peer, seat, stream)) return code;
        }
        return receive(out, bytes, root, seat, stream);
      });
    });
  }

  Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place at) override {
    const bool equal = all_equal(counts);
    const Call again = equal ? repeated(Operation::ReduceScatter, in, out, counts[0], type, op) : Call{};
    return reducing("reduce_scatter", type, op, at, again,
                    [&](const Numbers& of, int operation, const Seat& seat, Stream stream) {
      if (equal) {
        return nccl.reduce_scatter(in, out, of.each * size_of(counts[0]), of.type, operation, seat.comm, stream);
      }
      return grouped([&] {
        const auto* from = static_cast<const char*>(in);
        for (int root = 0; root < size(); ++root) {
          const std::size_t count = size_of(counts[static_cast<std::size_t>(root)]);
          if (count == 0) continue;
          if (int code = nccl.reduce(from, out, of.each * count, of.type, operation, root, seat.comm, stream)) {
            return code;
          }
          from += count * of.width;
        }
        return 0;
      });
    });
  }

  Failure alltoall(const void* in, void* out, const Counts& leaving, const Counts& arriving, int width,
                   Place at) override {
    return moving("alltoall", at, Call{}, [&](const Seat& seat, Stream stream) {
      return grouped([&] {
        const auto* from = static_cast<const char*>(in);
        auto* to = static_cast<char*>(out);
        for (int peer = 0; peer < size(); ++peer) {
          const std::size_t sent = size_of(leaving[static_cast<std::size_t>(peer)] * width);
          const std::size_t received = size_of(arriving[static_cast<std::size_t>(peer)] * width);
          if (int code = send(from, sent, peer, seat, stream)) return code;
          if (int code = receive(to, received, peer, seat, stream)) return code;
          from += sent;
          to += received;
        }
        return 0;
      });
    });
  }

  Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place at) override {
    return moving("exchange", at, Call{}, [&](const Seat& seat, Stream stream) {
      return grouped([&] {
        for (const Message& message : sends) {
          if (int code = send(message.data, size_of(message.count * message.width), message.peer, seat, stream)) return code;
        }
        for (const Message& message : receives) {
          if (int code = receive(message.data, size_of(message.count * message.width), message.peer, seat, stream)) {
            return code;
          }
        }
        return 0;
      });
    });
  }

  // Reduces one byte over all ranks, in memory that XLA has allocated.
  Failure barrier(void* scratch, Place at) override {
    const Call again = repeated(Operation::Barrier, scratch, scratch, 1, Type::U8);
    return moving("barrier", at, again, [&](const Seat& seat, Stream stream) {
      return nccl.all_reduce(scratch, scratch, 1, kBytes, operation_of(Op::Max), seat.comm, stream);
    });
  }

 private:
  static std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

  static bool all_equal(const Counts& counts) {
    return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts[0]; });
  }

  // The key under which a call is recorded when it is repeated.
  static Call repeated(Operation operation, const void* in, const void* out, std::int64_t count, Type type,
                       Op op = Op::Sum, int root = 0) {
    if (count == 0 || size_of(count) * numbers_of(type).width > kMostRecorded) return {};
    const int parts[] = {root, static_cast<int>(op), static_cast<int>(type), static_cast<int>(operation)};
    std::uint64_t all = 0;
    for (const int part : parts) all = all << 8 | static_cast<unsigned>(part);
    return {all, {reinterpret_cast<std::uintptr_t>(in), reinterpret_cast<std::uintptr_t>(out), size_of(count)}};
  }

  // Empty messages are skipped on both sides.
  static int send(const void* from, std::size_t bytes, int peer, const Seat& seat, Stream stream) {
    return bytes ? nccl.send(from, bytes, kBytes, peer, seat.comm, stream) : 0;
  }
  static int receive(void* to, std::size_t bytes, int peer, const Seat& seat, Stream stream) {
    return bytes ? nccl.receive(to, bytes, kBytes, peer, seat.comm, stream) : 0;
  }

  template <class Calls>
  static int grouped(Calls calls) {
    if (int code = nccl.group_start()) return code;
    const int code = calls();
    const int end = nccl.group_end();
    return code ? code : end;
  }

  template <class Enqueue>
  Failure moving(const char* operation, Place at, const Call& again, Enqueue enqueue) {
    // The only device of a process is used whatever number XLA passes.
    const auto found = seats_.size() == 1 ? seats_.begin() : seats_.find(at.device);
    if (found == seats_.end()) {
      return std::string(operation) + ": device " + std::to_string(at.device) + " is not part of this communicator";
    }
    const Seat& seat = found->second;
    const auto on = [&](Stream stream) { return enqueue(seat, stream); };
    const bool recorded = seat.recordings && again.operation;
    const Codes codes = recorded ? seat.recordings->run(again, at.stream, on) : Codes{on(at.stream), 0};
    if (codes.nccl) {
      std::string text = std::string(operation) + ": NCCL reports: " + nccl.error_string(codes.nccl);
      if (nccl.last_error) text += std::string(" (") + nccl.last_error(seat.comm) + ")";
      return text;
    }
    if (codes.cuda) {
      return std::string(operation) + ": CUDA reports error " + std::to_string(codes.cuda) + " for a recorded NCCL call";
    }
    return {};
  }

  template <class Enqueue>
  Failure reducing(const char* name, Type type, Op op, Place at, const Call& again, Enqueue enqueue) {
    const Numbers of = numbers_of(type);
    const int operation = operation_of(op);
    if (of.type < 0 || operation < 0) return std::string(name) + ": NCCL does not support this reduction for this dtype";
    return moving(name, at, again, [&](const Seat& seat, Stream stream) { return enqueue(of, operation, seat, stream); });
  }

  std::map<int, Seat> seats_;
};

}  // namespace
}  // namespace collops

void collops_load_nccl(const std::int64_t* functions) {
  using namespace collops;
  void* addresses[kFunctions];
  for (int i = 0; i < kFunctions; ++i) addresses[i] = reinterpret_cast<void*>(functions[i]);
  std::memcpy(&nccl, addresses, sizeof nccl);
}

std::int64_t collops_add_nccl(const std::int64_t* communicators, const int* devices, const int* ranks, int count,
                              int size, int record) {
  using namespace collops;
  std::map<int, Seat> seats;
  for (int i = 0; i < count; ++i) {
    seats[devices[i]] = {reinterpret_cast<void*>(static_cast<std::intptr_t>(communicators[i])), ranks[i],
                         record && can_record() ? std::make_unique<Recordings>() : nullptr};
  }
  return add_transport(std::make_unique<NcclTransport>(std::move(seats), size));
}
