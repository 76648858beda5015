/* A CUDA runtime, driver, cuBLAS and NCCL whose kernels do nothing, so that torch's own CUDA code
 * runs on a machine without a GPU.
 *
 * Device memory is lazily mapped host memory, so that models of any size "load"; small copies are
 * real, so that what the host reads is what lies there. Graphs, copies and synchronisations are
 * counted. What a real driver refuses while a stream is captured is refused here: synchronising,
 * copies from pageable memory, reads, work on other streams; so are grids out of bounds.
 *
 * stubs.c, made by runtime.py, returns 0 from every other symbol that torch's libraries ask for.
 */
#define _GNU_SOURCE
#include <driver_types.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Status;
typedef void *Handle;
typedef struct { unsigned x, y, z; } Grid;

enum { OK = 0, INVALID_CONFIGURATION = 9, OUT_OF_MEMORY = 2, NOT_WHILE_CAPTURING = 900 };
#define REAL_COPY (1UL << 22) /* larger copies are counted and not made */

/* ---------------------------------------------------------------- counters */

enum { REPLAYS, SYNCS, PAGEABLE, READS, VIOLATIONS, COLLECTIVES, COUNTERS };
static long counters[COUNTERS];
static const char *names[COUNTERS] = {"replays", "syncs", "pageable", "reads", "violations",
                                      "collectives"};
const char *dry_name(int i) { return i < COUNTERS ? names[i] : 0; }
long dry_get(int i) { return counters[i]; }
void dry_reset(void) { memset(counters, 0, sizeof counters); }

static char complaint[512];
const char *dry_complaint(void) { return complaint; }

static Status refused(const char *what) {
    counters[VIOLATIONS]++;
    snprintf(complaint, sizeof complaint, "%s", what);
    return NOT_WHILE_CAPTURING;
}

/* ---------------------------------------------------------------- capture */

static __thread int capturing;      /* this thread records */
static Handle captured[64];         /* the streams that belong to the recording */
static Handle marks[4096];          /* events recorded on them */
static int streams, events;
static unsigned long long capture_id;
typedef struct { long nodes, collectives; } Graph;
static Graph graph;                 /* what is being recorded */
static long exchanging;             /* graphs with collectives in them */

static int is_captured(Handle s) {
    for (int i = 0; i < streams; i++)
        if (captured[i] == s) return 1;
    return 0;
}

static int is_mark(Handle e) {
    for (int i = 0; i < events && streams; i++)
        if (marks[i] == e) return 1;
    return 0;
}

/* One piece of device work, which belongs to the graph while it is captured. */
static Status work(Handle s) {
    if (is_captured(s)) { graph.nodes++; return OK; }
    if (capturing) return refused("work on a stream outside the capture");
    return OK;
}

Status cudaStreamBeginCapture(Handle s, int mode) {
    if (s == 0 || s == (Handle)1) return refused("capture of the default stream");
    capturing = 1, streams = events = 0, graph = (Graph){0}, capture_id++;
    captured[streams++] = s;
    return OK;
}
Status cudaStreamEndCapture(Handle s, Handle *made) {
    Graph *g = malloc(sizeof *g);
    *g = graph, *made = g;
    capturing = 0, streams = 0;
    return OK;
}
Status cudaStreamIsCapturing(Handle s, int *state) { *state = is_captured(s); return OK; }
Status cudaStreamGetCaptureInfo(Handle s, int *state, unsigned long long *id, Handle *into,
                                const Handle **from, const Handle **edges, size_t *count) {
    *state = is_captured(s);
    if (id) *id = capture_id;
    if (into) *into = (Handle)0x77;
    if (count) *count = 0;
    return OK;
}
Status cudaGraphInstantiateWithFlags(Handle *run, Graph *made, unsigned long long flags) {
    Graph *g = malloc(sizeof *g);
    *g = *made, *run = g;
    exchanging += g->collectives > 0;
    return OK;
}
Status cudaGraphExecDestroy(Graph *run) {
    exchanging -= run->collectives > 0;
    free(run);
    return OK;
}
Status cudaGraphGetNodes(Graph *made, Handle *nodes, size_t *count) {
    *count = made->nodes;
    return OK;
}
Status cudaGraphLaunch(Graph *run, Handle s) {
    if (capturing) return refused("a graph launched inside a capture");
    counters[REPLAYS]++, counters[COLLECTIVES] += run->collectives;
    return OK;
}

/* ---------------------------------------------------------------- streams and events */

static long next_id = 0x1000;
static Status fresh(Handle *h) { *h = (Handle)(next_id += 16); return OK; }
Status cudaStreamCreate(Handle *s) { return fresh(s); }
Status cudaStreamCreateWithFlags(Handle *s, unsigned f) { return fresh(s); }
Status cudaStreamCreateWithPriority(Handle *s, unsigned f, int p) { return fresh(s); }
Status cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0, *high = -5; return OK; }
Status cudaStreamGetPriority(Handle s, int *p) { *p = 0; return OK; }
Status cudaEventCreate(Handle *e) { return fresh(e); }
Status cudaEventCreateWithFlags(Handle *e, unsigned f) { return fresh(e); }
Status cudaEventRecord(Handle e, Handle s) {
    if (is_captured(s) && events < 4096) marks[events++] = e;
    return OK;
}
Status cudaEventRecordWithFlags(Handle e, Handle s, unsigned f) { return cudaEventRecord(e, s); }
Status cudaEventElapsedTime(float *ms, Handle a, Handle b) { *ms = 1; return OK; }
Status cudaStreamWaitEvent(Handle s, Handle e, unsigned f) {
    if (is_mark(e) && !is_captured(s) && streams < 64) captured[streams++] = s;
    return OK;
}
static Status wait_for(const char *what, int inside) {
    if (inside) return refused(what);
    counters[SYNCS]++;
    return OK;
}
Status cudaStreamSynchronize(Handle s) { return wait_for("wait for a stream", is_captured(s)); }
Status cudaDeviceSynchronize(void) { return wait_for("wait for the device", capturing); }
Status cudaEventSynchronize(Handle e) { return wait_for("wait for an event", capturing); }
Status cudaEventQuery(Handle e) {
    if (is_mark(e)) return refused("a query of an event inside a capture");
    return OK;
}

/* ---------------------------------------------------------------- the device */

enum { MAJOR = 9, MINOR = 0, PROCESSORS = 132, SHARED = 232448 }; /* of an H100 */
static const size_t MEMORY = 80UL << 30;
Status cudaGetDeviceCount(int *n) { *n = 1; return OK; }
Status cudaGetDevice(int *d) { *d = 0; return OK; }
Status cudaDriverGetVersion(int *v) { *v = 13000; return OK; }
Status cudaRuntimeGetVersion(int *v) { *v = 13000; return OK; }
Status cudaDeviceGetPCIBusId(char *id, int n, int d) { strncpy(id, "0000:01:00.0", n); return OK; }
Status cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "dry sm_%d%d", MAJOR, MINOR);
    p->totalGlobalMem = MEMORY;
    p->major = MAJOR, p->minor = MINOR;
    p->multiProcessorCount = PROCESSORS;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = SHARED;
    p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64, p->maxThreadsPerMultiProcessor = 2048;
    p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxBlocksPerMultiProcessor = 32, p->l2CacheSize = 52428800, p->memoryBusWidth = 5120;
    p->textureAlignment = 512, p->concurrentKernels = p->unifiedAddressing = 1;
    return OK;
}
Status cudaDeviceGetAttribute(int *v, int attribute, int d) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, d);
    switch (attribute) {
    case 1: case 2: case 3: *v = 1024; break;
    case 4: *v = 64; break;
    case 5: *v = 2147483647; break;
    case 6: case 7: *v = 65535; break;
    case 8: *v = p.sharedMemPerBlock; break;
    case 10: *v = 32; break;
    case 12: case 82: *v = 65536; break;
    case 16: *v = PROCESSORS; break;
    case 39: *v = 2048; break;
    case 75: *v = p.major; break;
    case 76: *v = p.minor; break;
    case 81: *v = p.sharedMemPerMultiprocessor; break;
    case 97: *v = p.sharedMemPerBlockOptin; break;
    case 106: *v = 32; break;
    default: *v = 1;
    }
    return OK;
}
const char *cudaGetErrorName(int e) { return "cudaError"; }
const char *cudaGetErrorString(int e) {
    return e == NOT_WHILE_CAPTURING ? complaint : e == OUT_OF_MEMORY ? "out of memory" : "error";
}

/* ---------------------------------------------------------------- memory */

typedef struct { char *at; size_t size; } Block;
static Block blocks[1 << 18], pinned[1 << 13];
static int block_count, pinned_count;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int lies_in(const Block *list, int n, const void *p) {
    for (int i = 0; i < n; i++)
        if ((char *)p >= list[i].at && (char *)p < list[i].at + list[i].size) return 1;
    return 0;
}
Status cudaMemGetInfo(size_t *available, size_t *total) {
    *total = MEMORY, *available = MEMORY - used;
    return OK;
}
Status cudaMalloc(Handle *p, size_t size) {
    size_t whole = (size + 4095) & ~4095UL;
    *p = 0;
    if (used + whole > MEMORY) return OUT_OF_MEMORY;
    Handle at = mmap(0, whole, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    blocks[block_count++] = (Block){at, whole};
    used += whole;
    pthread_mutex_unlock(&lock);
    *p = at;
    return OK;
}
Status cudaFree(Handle p) {
    pthread_mutex_lock(&lock);
    for (int i = block_count - 1; i >= 0; i--)
        if (blocks[i].at == p) {
            munmap(p, blocks[i].size);
            used -= blocks[i].size;
            blocks[i] = blocks[--block_count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return OK;
}
Status cudaMallocAsync(Handle *p, size_t size, Handle s) { return cudaMalloc(p, size); }
Status cudaFreeAsync(Handle p, Handle s) { return cudaFree(p); }
Status cudaHostAlloc(Handle *p, size_t size, unsigned flags) {
    *p = aligned_alloc(4096, (size + 4095) & ~4095UL);
    pthread_mutex_lock(&lock);
    if (pinned_count < (1 << 13)) pinned[pinned_count++] = (Block){*p, size};
    pthread_mutex_unlock(&lock);
    return OK;
}
static void copy(Handle to, const void *from, size_t size) {
    if (size < REAL_COPY) memcpy(to, from, size);
}
/* kinds: 1 to the device, 2 to the host, 3 on the device */
static Status copied(Handle to, const void *from, size_t size, int kind, Handle s) {
    int lasting = kind != 1 || lies_in(pinned, pinned_count, from);
    if (is_captured(s) && kind == 2) return refused("a read inside a capture");
    if (is_captured(s) && !lasting) return refused("a copy from pageable memory in a capture");
    if (is_captured(s)) { graph.nodes++; }
    else if (capturing) return refused("a copy on a stream outside the capture");
    else counters[PAGEABLE] += !lasting, counters[READS] += kind == 2;
    copy(to, from, size);
    return OK;
}
Status cudaMemcpyAsync(Handle to, const void *from, size_t size, int kind, Handle s) {
    return copied(to, from, size, kind, s);
}
Status cudaMemcpy(Handle to, const void *from, size_t size, int kind) {
    if (capturing) return refused("a copy that waits, inside a capture");
    counters[SYNCS]++;
    return copied(to, from, size, kind, 0);
}
Status cudaMemcpy2DAsync(Handle to, size_t a, const void *from, size_t b, size_t w, size_t h,
                         int kind, Handle s) { return work(s); }
Status cudaMemcpyPeerAsync(Handle to, int a, const void *from, int b, size_t n, Handle s) {
    return work(s);
}
Status cudaMemset(Handle p, int v, size_t n) {
    return capturing ? refused("a memset that waits, inside a capture") : OK;
}
Status cudaMemsetAsync(Handle p, int v, size_t n, Handle s) {
    return work(s);
}
Status cudaGetSymbolAddress(Handle *p, const void *s) { *p = calloc(1, 1 << 16); return OK; }
Status cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    memset(a, 0, sizeof *a);
    a->type = lies_in(blocks, block_count, p) ? 2 : lies_in(pinned, pinned_count, p) ? 1 : 0;
    a->devicePointer = (Handle)p;
    return OK;
}

/* ---------------------------------------------------------------- kernels */

Handle *__cudaRegisterFatBinary(Handle binary) { static Handle h[4]; return h; }
char __cudaInitModule(Handle *h) { return 1; }
static __thread struct { Grid grid, block; size_t shared; Handle stream; } configuration;
unsigned __cudaPushCallConfiguration(Grid g, Grid b, size_t shared, Handle s) {
    configuration.grid = g, configuration.block = b;
    configuration.shared = shared, configuration.stream = s;
    return 0;
}
Status __cudaPopCallConfiguration(Grid *g, Grid *b, size_t *shared, Handle *s) {
    *g = configuration.grid, *b = configuration.block;
    *shared = configuration.shared, *s = configuration.stream;
    return OK;
}
static Status launched(Grid g, Grid b, Handle s) {
    Status status = work(s);
    unsigned long threads = (unsigned long)b.x * b.y * b.z;
    if (status) return status;
    if (!g.x || !g.y || !g.z || g.y > 65535 || g.z > 65535 || !threads || threads > 1024) {
        refused("a grid out of bounds");
        return INVALID_CONFIGURATION;
    }
    return OK;
}
Status cudaLaunchKernel(const void *f, Grid g, Grid b, Handle *a, size_t shared, Handle s) {
    return launched(g, b, s);
}
Status __cudaLaunchKernel(const void *f, Grid g, Grid b, Handle *a, size_t shared, Handle s) {
    return launched(g, b, s);
}
Status __cudaGetKernel(const void **kernel, const void *f) { *kernel = f; return OK; }
Status cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, Handle *a) {
    Grid g = {c->gridDim.x, c->gridDim.y, c->gridDim.z};
    Grid b = {c->blockDim.x, c->blockDim.y, c->blockDim.z};
    return launched(g, b, (Handle)c->stream);
}
Status cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024, a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = 10 * MAJOR + MINOR;
    a->maxDynamicSharedSizeBytes = 166912;
    return OK;
}
Status cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) {
    *n = 2;
    return OK;
}
Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b,
                                                              size_t s, unsigned flags) {
    *n = 2;
    return OK;
}

/* ---------------------------------------------------------------- cuBLAS */

static __thread Handle blas_stream;
Status cublasCreate_v2(Handle *h) { return fresh(h); }
Status cublasGetMathMode(Handle h, int *mode) { *mode = 0; return OK; }
Status cublasGetPointerMode_v2(Handle h, int *mode) { *mode = 0; return OK; }
Status cublasSetStream_v2(Handle h, Handle s) { blas_stream = s; return OK; }
Status cublasSgemm_v2(void) { return work(blas_stream); }
Status cublasDgemm_v2(void) { return work(blas_stream); }
Status cublasGemmEx(void) { return work(blas_stream); }
Status cublasSgemv_v2(void) { return work(blas_stream); }
Status cublasSgemmStridedBatched(void) { return work(blas_stream); }
Status cublasGemmStridedBatchedEx(void) { return work(blas_stream); }
size_t cublasLtGetVersion(void) { return 130100; }
Status cublasLtMatmulDescCreate(Handle *d, int a, int b) { return fresh(d); }
Status cublasLtMatrixLayoutCreate(Handle *d) { return fresh(d); }
Status cublasLtMatmulPreferenceCreate(Handle *d) { return fresh(d); }
Status cublasLtMatmulAlgoGetHeuristic(Handle h, Handle d, Handle a, Handle b, Handle c, Handle o,
                                      Handle p, int wanted, char *result, int *count) {
    memset(result, 0, 80); /* one cublasLtMatmulHeuristicResult_t: 64 bytes of algorithm first */
    *count = 1;
    return OK;
}
Status cublasLtMatmul(Handle h, Handle d, const void *alpha, const void *A, Handle a, const void *B,
                      Handle b, const void *beta, const void *C, Handle c, Handle D, Handle o,
                      Handle algorithm, Handle space, size_t size, Handle s) {
    return work(s);
}

/* ---------------------------------------------------------------- NCCL */

/* Collectives exchange nothing, and do not wait for each other. */
typedef struct { int rank, size; } Communicator;
typedef struct { char bytes[128]; } UniqueId;
static Status collective(Handle s) {
    if (work(s)) return 1; /* ncclUnhandledCudaError */
    if (is_captured(s)) graph.collectives++;
    else counters[COLLECTIVES]++;
    return OK;
}
Status ncclGetVersion(int *v) { *v = 22907; return OK; }
Status ncclGetUniqueId(UniqueId *id) { memset(id, 7, sizeof *id); return OK; }
Status ncclCommInitRankConfig(Handle *c, int size, UniqueId id, int rank, Handle settings) {
    Communicator *made = malloc(sizeof *made);
    *made = (Communicator){rank, size}, *c = made;
    return OK;
}
Status ncclCommInitRank(Handle *c, int size, UniqueId id, int rank) {
    return ncclCommInitRankConfig(c, size, id, rank, 0);
}
Status ncclCommSplit(Communicator *whole, int color, int key, Handle *c, Handle settings) {
    return ncclCommInitRankConfig(c, whole->size, (UniqueId){{0}}, whole->rank, 0);
}
static Status left(Handle c) {
    if (exchanging) refused("NCCL left while graphs have collectives: it waits for them");
    return OK;
}
Status ncclCommFinalize(Handle c) { return left(c); }
Status ncclCommDestroy(Handle c) { return left(c); }
Status ncclCommAbort(Handle c) { return left(c); }
Status ncclCommGetAsyncError(Handle c, int *error) { *error = 0; return OK; }
Status ncclCommCount(Communicator *c, int *n) { *n = c->size; return OK; }
Status ncclCommUserRank(Communicator *c, int *n) { *n = c->rank; return OK; }
Status ncclCommCuDevice(Handle c, int *n) { *n = 0; return OK; }
const char *ncclGetErrorString(int e) { return e ? complaint : "no error"; }
const char *ncclGetLastError(Handle c) { return complaint; }
Status ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Handle c, Handle s) {
    return collective(s);
}
Status ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Handle c, Handle s) {
    return collective(s);
}
Status ncclBcast(void *at, size_t n, int type, int root, Handle c, Handle s) {
    return collective(s);
}
Status ncclAllGather(const void *from, void *to, size_t n, int type, Handle c, Handle s) {
    return collective(s);
}
Status ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, Handle c,
                         Handle s) {
    return collective(s);
}

/* ---------------------------------------------------------------- the driver */

static int zero(void) { return OK; }
Status cudaGetDriverEntryPointByVersion(const char *name, Handle *f, unsigned version,
                                        unsigned long long flags, int *status) {
    *f = (Handle)zero;
    if (status) *status = 0;
    return OK;
}
Status cuDriverGetVersion(int *v) { *v = 13000; return OK; }
Status cuGetErrorString(int e, const char **s) { *s = "error"; return OK; }
Status cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { *active = 1; return OK; }
Status cuDevicePrimaryCtxRetain(Handle *c, int d) { *c = (Handle)0x99; return OK; }
Status cuCtxGetCurrent(Handle *c) { *c = (Handle)0x99; return OK; }
Status cuCtxGetDevice(int *d) { *d = 0; return OK; }
Status cuDeviceGet(int *d, int ordinal) { *d = 0; return OK; }
Status cuDeviceGetAttribute(int *v, int a, int d) { return cudaDeviceGetAttribute(v, a, d); }
Status cuModuleLoadData(Handle *m, const void *image) { *m = (Handle)0x99; return OK; }
Status cuModuleGetFunction(Handle *f, Handle m, const char *name) { *f = strdup(name); return OK; }
Status cuLibraryLoadData(Handle *l, const void *image) { *l = (Handle)0x99; return OK; }
Status cuLibraryGetKernel(Handle *k, Handle l, const char *name) { *k = strdup(name); return OK; }
Status cuFuncGetAttribute(int *v, int a, Handle f) {
    *v = a == 0 ? 1024 : a == 4 ? 32 : 0;
    return OK;
}
Status cuPointerGetAttribute(Handle *d, int a, Handle p) { *d = p; return OK; }
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; Handle stream; } LaunchConfig;
Status cuLaunchKernelEx(const LaunchConfig *c, Handle f, Handle *a, Handle *extra) {
    return launched((Grid){c->gx, c->gy, c->gz}, (Grid){c->bx, c->by, c->bz}, c->stream);
}
Status cuLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, Handle s, Handle *a, Handle *extra) {
    return launched((Grid){gx, gy, gz}, (Grid){bx, by, bz}, s);
}
