// The typed FFI handlers that XLA calls, for hosts and for devices.
//
// Operands are the arrays, then tokens that order the calls and are not read; likewise the results. Attributes are the number of
// the transport ("wire"), the text by which Python knows the call ("call"), and the parameters of the collective. A failure makes
// the whole computation fail; Python raises an exception with the message.
#include <algorithm>
#include <utility>

#include "transport.h"
#include "xla/ffi/api/ffi.h"

namespace collops {
namespace {

namespace ffi = xla::ffi;
using Arguments = ffi::RemainingArgs;
using Results = ffi::RemainingRets;
using Integers = ffi::Span<const std::int64_t>;
using Text = std::string_view;

Type type_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED: return Type::Bool;
    case ffi::DataType::S8: return Type::I8;
    case ffi::DataType::S16: return Type::I16;
    case ffi::DataType::S32: return Type::I32;
    case ffi::DataType::S64: return Type::I64;
    case ffi::DataType::U8: return Type::U8;
    case ffi::DataType::U16: return Type::U16;
    case ffi::DataType::U32: return Type::U32;
    case ffi::DataType::U64: return Type::U64;
    case ffi::DataType::F16: return Type::F16;
    case ffi::DataType::BF16: return Type::BF16;
    case ffi::DataType::F32: return Type::F32;
    case ffi::DataType::F64: return Type::F64;
    case ffi::DataType::C64: return Type::C64;
    case ffi::DataType::C128: return Type::C128;
    default: return Type::None;
  }
}

struct Array {
  void* data = nullptr;
  std::int64_t count = 0;
  int width = 1;
  Type type = Type::None;
};

Array described(const ffi::AnyBuffer& buffer) {
  const auto count = static_cast<std::int64_t>(buffer.element_count());
  const Type type = type_of(buffer.element_type());
  const int width = type == Type::None ? 0 : static_cast<int>(ffi::ByteWidth(buffer.element_type()));
  return {buffer.untyped_data(), count, width, type};
}

Array operand(const Arguments& arguments, std::size_t index) {
  const auto found = arguments.get<ffi::AnyBuffer>(index);
  return found.has_value() ? described(found.value()) : Array{};
}

Array result(const Results& results, std::size_t index) {
  auto found = results.get<ffi::AnyBuffer>(index);
  return found.has_value() ? described(**found) : Array{};
}

ffi::Error outcome(const Failure& failure) {
  return failure.empty() ? ffi::Error::Success() : ffi::Error::Internal("collops." + failure);
}

// Runs `call` with the transport, if that is usable, the dtype of `array` is supported, and the ranks agree on the call.
template <class Call>
ffi::Error on_transport(Place at, std::int64_t number, Text text, const Array& array, Call call, bool collective = true) {
  Transport* transport = find_transport(number);
  if (transport == nullptr) {
    return ffi::Error::Internal("collops: this program was compiled in another process, with other communicators");
  }
  if (array.type == Type::None) return ffi::Error::InvalidArgument("collops: arrays of this dtype cannot be sent");
  if (const Failure failure = transport->begin(text, collective, at); !failure.empty()) return outcome(failure);
  return outcome(call(*transport));
}

ffi::Error allreduce(Place at, std::int64_t number, Text text, std::int64_t op, Arguments in, Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.allreduce(x.data, result(out, 0).data, x.count, x.type, static_cast<Op>(op), at);
  });
}

ffi::Error reduce(Place at, std::int64_t number, Text text, std::int64_t op, std::int64_t root, Arguments in,
                  Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.reduce(x.data, result(out, 0).data, x.count, x.type, static_cast<Op>(op), static_cast<int>(root), at);
  });
}

ffi::Error bcast(Place at, std::int64_t number, Text text, std::int64_t root, Arguments in, Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.bcast(x.data, result(out, 0).data, x.count, x.width, static_cast<int>(root), at);
  });
}

ffi::Error allgather(Place at, std::int64_t number, Text text, Integers counts, Arguments in, Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.allgather(x.data, result(out, 0).data, {counts.begin(), counts.end()}, x.width, at);
  });
}

ffi::Error gather(Place at, std::int64_t number, Text text, std::int64_t root, Arguments in, Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.gather(x.data, result(out, 0).data, x.count, x.width, static_cast<int>(root), at);
  });
}

ffi::Error scatter(Place at, std::int64_t number, Text text, std::int64_t root, Arguments in, Results out) {
  const Array y = result(out, 0);
  return on_transport(at, number, text, y, [&](Transport& t) {
    return t.scatter(operand(in, 0).data, y.data, y.count, y.width, static_cast<int>(root), at);
  });
}

ffi::Error reduce_scatter(Place at, std::int64_t number, Text text, std::int64_t op, Integers counts, Arguments in,
                          Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.reduce_scatter(x.data, result(out, 0).data, {counts.begin(), counts.end()}, x.type, static_cast<Op>(op),
                            at);
  });
}

ffi::Error alltoall(Place at, std::int64_t number, Text text, Integers leaving, Integers arriving, Arguments in,
                    Results out) {
  const Array x = operand(in, 0);
  return on_transport(at, number, text, x, [&](Transport& t) {
    return t.alltoall(x.data, result(out, 0).data, {leaving.begin(), leaving.end()},
                      {arriving.begin(), arriving.end()}, x.width, at);
  });
}

ffi::Error exchange(Place at, std::int64_t number, Text text, Integers destinations, Integers send_tags,
                    Integers sources, Integers receive_tags, std::int64_t status, Arguments in, Results out) {
  std::vector<Message> sends, receives;
  Type worst = Type::U8;
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    const Array x = operand(in, i);
    worst = std::max(worst, x.type);
    sends.push_back({static_cast<int>(destinations[i]), static_cast<int>(send_tags[i]), x.data, x.count, x.width});
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Array y = result(out, i);
    worst = std::max(worst, y.type);
    receives.push_back({static_cast<int>(sources[i]), static_cast<int>(receive_tags[i]), y.data, y.count, y.width,
                        reinterpret_cast<void*>(status)});
  }
  const auto call = [&](Transport& t) { return t.exchange(sends, receives, at); };
  return on_transport(at, number, text, Array{nullptr, 0, 1, worst}, call, /*collective=*/false);
}

ffi::Error barrier(Place at, std::int64_t number, Text text, Arguments, Results out) {
  const Array scratch = result(out, 0);
  return on_transport(at, number, text, scratch, [&](Transport& t) { return t.barrier(scratch.data, at); });
}

}  // namespace
}  // namespace collops

// Each handler is exported three times: for hosts; for devices; and for devices where it may be recorded in a command buffer, a
// graph that is launched as a whole. NativeComm.handlers in src/collops/jax/communicators.py chooses.
#define COLLOPS_EXPORT extern "C" __attribute__((visibility("default"))) XLA_FFI_Error*
#define ON_DEVICE(NAME, BINDING, ...)                                                                  \
  static auto* handler =                                                                               \
      xla::ffi::Ffi::Bind()                                                                            \
          .Ctx<xla::ffi::PlatformStream<void*>>()                                                      \
          .Ctx<xla::ffi::DeviceOrdinal>()                                                              \
          BINDING                                                                                      \
          .To([](void* stream, std::int32_t device,                                                    \
                 auto... rest) { return collops::NAME(collops::Place{stream, device}, rest...); },     \
              {__VA_ARGS__})                                                                           \
          .release();                                                                                  \
  return handler->Call(frame);
#define COLLOPS_HANDLER(NAME, BINDING)                                                                 \
  COLLOPS_EXPORT collops_host_##NAME(XLA_FFI_CallFrame* frame) {                                       \
    static auto* handler =                                                                             \
        xla::ffi::Ffi::Bind()                                                                          \
            .Ctx<xla::ffi::DeviceOrdinal>()                                                            \
            BINDING                                                                                    \
            .To([](std::int32_t device,                                                                \
                   auto... rest) { return collops::NAME(collops::Place{nullptr, device}, rest...); })  \
            .release();                                                                                \
    return handler->Call(frame);                                                                       \
  }                                                                                                    \
  COLLOPS_EXPORT collops_device_##NAME(XLA_FFI_CallFrame* frame) { ON_DEVICE(NAME, BINDING) }          \
  COLLOPS_EXPORT collops_recorded_##NAME(XLA_FFI_CallFrame* frame) {                                   \
    ON_DEVICE(NAME, BINDING, xla::ffi::Traits::kCmdBufferCompatible)                                   \
  }
#define INTEGER(NAME) .Attr<std::int64_t>(NAME)
#define TEXT(NAME) .Attr<std::string_view>(NAME)
#define INTEGERS(NAME) .Attr<xla::ffi::Span<const std::int64_t>>(NAME)
#define ARRAYS .RemainingArgs().RemainingRets()

COLLOPS_HANDLER(allreduce, INTEGER("wire") TEXT("call") INTEGER("op") ARRAYS)
COLLOPS_HANDLER(reduce, INTEGER("wire") TEXT("call") INTEGER("op") INTEGER("root") ARRAYS)
COLLOPS_HANDLER(bcast, INTEGER("wire") TEXT("call") INTEGER("root") ARRAYS)
COLLOPS_HANDLER(allgather, INTEGER("wire") TEXT("call") INTEGERS("counts") ARRAYS)
COLLOPS_HANDLER(gather, INTEGER("wire") TEXT("call") INTEGER("root") ARRAYS)
COLLOPS_HANDLER(scatter, INTEGER("wire") TEXT("call") INTEGER("root") ARRAYS)
COLLOPS_HANDLER(reduce_scatter, INTEGER("wire") TEXT("call") INTEGER("op") INTEGERS("counts") ARRAYS)
COLLOPS_HANDLER(alltoall, INTEGER("wire") TEXT("call") INTEGERS("leaving") INTEGERS("arriving") ARRAYS)
COLLOPS_HANDLER(exchange, INTEGER("wire") TEXT("call") INTEGERS("destinations") INTEGERS("send_tags")
                              INTEGERS("sources") INTEGERS("receive_tags") INTEGER("status") ARRAYS)
COLLOPS_HANDLER(barrier, INTEGER("wire") TEXT("call") ARRAYS)
