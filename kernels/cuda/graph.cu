/* Recorded operations: capture of the backend's one stream. See "Graphs" in backend.h. Engine's thread.
 *
 * Capture is thread-local, so that other threads may call the runtime meanwhile. An operation that can't be
 * recorded invalidates the recording (cuda_check), and the stream stays usable. */
#include "kernels/cuda/internal.h"

struct be_graph {
    cudaGraphExec_t exec;
};

enum be_result cuda_graph_begin(struct backend *b)
{
    CU_ASSERT(!b->recording);
    if (b->failed) return BE_DEVICE;
    cudaError_t e = cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(b->error, sizeof b->error, "CUDA: cudaStreamBeginCapture: %s", cudaGetErrorString(e));
        return BE_UNSUPPORTED;
    }
    b->recording = true;
    b->record_failed = false;
    return BE_OK;
}

enum be_result cuda_graph_end(struct backend *b, struct be_graph **out)
{
    CU_ASSERT(b->recording);
    cudaGraph_t graph = nullptr;
    struct be_graph *g = static_cast<struct be_graph *>(calloc(1, sizeof *g));
    bool room = g != nullptr;
    if (!room) snprintf(b->error, sizeof b->error, "out of memory for a graph");
    CU_TRY(b, cudaStreamEndCapture(b->stream, &graph)); /* in any case the stream leaves capture */
    if (room && graph && !b->record_failed) CU_TRY(b, cudaGraphInstantiate(&g->exec, graph, 0));
    if (room && !b->record_failed)
        CU_TRY(b, cudaGraphUpload(g->exec, b->stream)); /* else the first launch pays for it */
    if (graph) (void)cudaGraphDestroy(graph);
    b->recording = false;
    if (room && !b->record_failed) {
        *out = g;
        return BE_OK;
    }
    (void)cudaGetLastError();
    if (room && g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g);
    return room ? BE_UNSUPPORTED : BE_NOMEM;
}

void cuda_graph_launch(struct backend *b, const struct be_graph *g)
{
    CU_ASSERT(!b->recording);
    if (!b->failed) CU_TRY(b, cudaGraphLaunch(g->exec, b->stream));
}

void cuda_graph_free(struct backend *b, struct be_graph *g)
{
    if (!g) return;
    CU_TRY(b, cudaGraphExecDestroy(g->exec));
    free(g);
}
