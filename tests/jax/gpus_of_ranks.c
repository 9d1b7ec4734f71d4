/* NCCL's functions that connect GPUs, played: communicators are set when a group ends, and calls outside of a group fail. */
#include <stdio.h>
#include <string.h>

typedef struct {
  char bytes[128];
} Id;
static struct {
  void** comm;
  int rank;
} waiting[8];
static int depth = 0, count = 0;
static char calls[4096] = "";

static int note(const char* what, long first, long second) {
  char line[64];
  if (depth == 0) return 5;
  snprintf(line, sizeof line, "%s %ld %ld\n", what, first, second);
  strcat(calls, line);
  return 0;
}
const char* made_calls(void) { return calls; }
const char* ncclGetErrorString(int code) { return code ? "not in a group" : ""; }
int ncclGroupStart(void) { return ++depth, 0; }
int ncclGroupEnd(void) {
  for (; count > 0; --count) *waiting[count - 1].comm = (void*)(1000L + waiting[count - 1].rank);
  strcat(calls, "end\n");
  return --depth, 0;
}
int ncclCommInitRank(void** comm, int size, Id id, int rank) {
  waiting[count].comm = comm;
  waiting[count++].rank = rank;
  return id.bytes[127] == 7 ? note("connect", size, rank) : 4;
}
int ncclSend(const void* from, size_t bytes, int type, int peer, void* comm, void* stream) {
  (void)from, (void)bytes, (void)type, (void)stream;
  return note("send", (long)comm, peer);
}
int ncclRecv(void* to, size_t bytes, int type, int peer, void* comm, void* stream) {
  (void)to, (void)bytes, (void)type, (void)stream;
  return note("receive", (long)comm, peer);
}
int ncclAllReduce(const void* in, void* out, size_t bytes, int type, int op, void* comm, void* stream) {
  (void)in, (void)out, (void)type, (void)op, (void)stream;
  return note("sum", (long)comm, (long)bytes);
}
