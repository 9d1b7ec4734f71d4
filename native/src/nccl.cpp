// The wire over NCCL, or RCCL, which has the same functions: every call is put on XLA's stream, and the host never waits.
//
// No header of CUDA or NCCL is used: functions are called through addresses from Python, and the few types that they
// take are declared here. Whatever only moves is sent as bytes. One process may drive several devices: each has its own
// communicator, and the handler is told which device it runs on.
#include <cstring>
#include <map>

#include "api.h"
#include "wire.h"

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

NcclFunctions nccl{};

struct Numbers {
  int type = -1;         // ncclDataType_t
  std::size_t each = 1;  // how many of it make one element
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
};

class NcclWire final : public Wire {
 public:
  NcclWire(std::map<int, Seat> seats, int size) : Wire(seats.begin()->second.rank, size), seats_(std::move(seats)) {}

  Failure allreduce(const void* in, void* out, std::int64_t count, Type type, Op op, Place at) override {
    return reducing("allreduce", type, op, at, [&](const Numbers& of, int operation, const Seat& seat) {
      return nccl.all_reduce(in, out, of.each * size_of(count), of.type, operation, seat.comm, at.stream);
    });
  }

  Failure reduce(const void* in, void* out, std::int64_t count, Type type, Op op, int root, Place at) override {
    return reducing("reduce", type, op, at, [&](const Numbers& of, int operation, const Seat& seat) {
      return nccl.reduce(in, out, of.each * size_of(count), of.type, operation, root, seat.comm, at.stream);
    });
  }

  Failure bcast(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return moving("bcast", at, [&](const Seat& seat) {
      return nccl.broadcast(in, out, size_of(count * width), kBytes, root, seat.comm, at.stream);
    });
  }

  Failure allgather(const void* in, void* out, const Counts& counts, int width, Place at) override {
    return moving("allgather", at, [&](const Seat& seat) {
      bool equal = true;
      for (const std::int64_t count : counts) equal = equal && count == counts[0];
      if (equal) return nccl.all_gather(in, out, size_of(counts[0] * width), kBytes, seat.comm, at.stream);
      return grouped([&] {
        auto* to = static_cast<char*>(out);
        for (int peer = 0; peer < size(); ++peer) {
          const std::size_t mine = size_of(counts[static_cast<std::size_t>(seat.rank)] * width);
          const std::size_t theirs = size_of(counts[static_cast<std::size_t>(peer)] * width);
          if (int code = send(in, mine, peer, seat, at)) return code;
          if (int code = receive(to, theirs, peer, seat, at)) return code;
          to += theirs;
        }
        return 0;
      });
    });
  }

  Failure gather(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return moving("gather", at, [&](const Seat& seat) {
      return grouped([&] {
        const std::size_t bytes = size_of(count * width);
        if (int code = send(in, bytes, root, seat, at)) return code;
        for (int peer = 0; seat.rank == root && peer < size(); ++peer) {
          if (int code = receive(static_cast<char*>(out) + size_of(peer) * bytes, bytes, peer, seat, at)) return code;
        }
        return 0;
      });
    });
  }

  Failure scatter(const void* in, void* out, std::int64_t count, int width, int root, Place at) override {
    return moving("scatter", at, [&](const Seat& seat) {
      return grouped([&] {
        const std::size_t bytes = size_of(count * width);
        for (int peer = 0; seat.rank == root && peer < size(); ++peer) {
          if (int code = send(static_cast<const char*>(in) + size_of(peer) * bytes, bytes, peer, seat, at)) return code;
        }
        return receive(out, bytes, root, seat, at);
      });
    });
  }

  Failure reduce_scatter(const void* in, void* out, const Counts& counts, Type type, Op op, Place at) override {
    return reducing("reduce_scatter", type, op, at, [&](const Numbers& of, int operation, const Seat& seat) {
      bool equal = true;
      for (const std::int64_t count : counts) equal = equal && count == counts[0];
      if (equal) {
        return nccl.reduce_scatter(in, out, of.each * size_of(counts[0]), of.type, operation, seat.comm, at.stream);
      }
      return grouped([&] {
        const auto* from = static_cast<const char*>(in);
        for (int root = 0; root < size(); ++root) {
          const std::size_t count = size_of(counts[static_cast<std::size_t>(root)]);
          if (count == 0) continue;
          if (int code = nccl.reduce(from, out, of.each * count, of.type, operation, root, seat.comm, at.stream)) {
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
    return moving("alltoall", at, [&](const Seat& seat) {
      return grouped([&] {
        const auto* from = static_cast<const char*>(in);
        auto* to = static_cast<char*>(out);
        for (int peer = 0; peer < size(); ++peer) {
          const std::size_t sent = size_of(leaving[static_cast<std::size_t>(peer)] * width);
          const std::size_t received = size_of(arriving[static_cast<std::size_t>(peer)] * width);
          if (int code = send(from, sent, peer, seat, at)) return code;
          if (int code = receive(to, received, peer, seat, at)) return code;
          from += sent;
          to += received;
        }
        return 0;
      });
    });
  }

  Failure exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Place at) override {
    return moving("exchange", at, [&](const Seat& seat) {
      return grouped([&] {
        for (const Message& message : sends) {
          if (int code = send(message.data, size_of(message.count * message.width), message.peer, seat, at)) return code;
        }
        for (const Message& message : receives) {
          if (int code = receive(message.data, size_of(message.count * message.width), message.peer, seat, at)) {
            return code;
          }
        }
        return 0;
      });
    });
  }

  // One byte from everybody to everybody, in memory that XLA gave: `scratch` is part of the program.
  Failure barrier(void* scratch, Place at) override {
    return moving("barrier", at, [&](const Seat& seat) {
      return nccl.all_reduce(scratch, scratch, 1, kBytes, operation_of(Op::Max), seat.comm, at.stream);
    });
  }

 private:
  static std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

  // Empty messages are left out on both sides.
  static int send(const void* from, std::size_t bytes, int peer, const Seat& seat, Place at) {
    return bytes ? nccl.send(from, bytes, kBytes, peer, seat.comm, at.stream) : 0;
  }
  static int receive(void* to, std::size_t bytes, int peer, const Seat& seat, Place at) {
    return bytes ? nccl.receive(to, bytes, kBytes, peer, seat.comm, at.stream) : 0;
  }

  template <class Calls>
  static int grouped(Calls calls) {
    if (int code = nccl.group_start()) return code;
    const int code = calls();
    const int end = nccl.group_end();
    return code ? code : end;
  }

  template <class Call>
  Failure moving(const char* operation, Place at, Call call) {
    // The one device of a process is found whatever XLA numbers it.
    const auto found = seats_.size() == 1 ? seats_.begin() : seats_.find(at.device);
    if (found == seats_.end()) {
      return std::string(operation) + ": device " + std::to_string(at.device) + " is not part of this communicator";
    }
    if (const int code = call(found->second)) {
      std::string text = std::string(operation) + ": NCCL reports: " + nccl.error_string(code);
      if (nccl.last_error) text += std::string(" (") + nccl.last_error(found->second.comm) + ")";
      return text;
    }
    return {};
  }

  template <class Call>
  Failure reducing(const char* name, Type type, Op op, Place at, Call call) {
    const Numbers of = numbers_of(type);
    const int operation = operation_of(op);
    if (of.type < 0 || operation < 0) return std::string(name) + ": NCCL has no such reduction of this dtype";
    return moving(name, at, [&](const Seat& seat) { return call(of, operation, seat); });
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
                              int size) {
  using namespace collops;
  std::map<int, Seat> seats;
  for (int i = 0; i < count; ++i) {
    seats[devices[i]] = {reinterpret_cast<void*>(static_cast<std::intptr_t>(communicators[i])), ranks[i]};
  }
  return add_wire(std::make_unique<NcclWire>(std::move(seats), size));
}
