/* A plugin of qemu that counts executed instructions: those of each block, when it begins. The declarations are those of
   qemu-plugin.h, version 1, which distributions don't install. */
#include <inttypes.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum { ADD_U64 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int, void*, uint64_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);

int qemu_plugin_version = 1;
static uint64_t total;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &total, qemu_plugin_tb_n_insns(block));
}

static void at_exit(qemu_plugin_id_t id, void* nothing) { fprintf(stderr, "instructions %" PRIu64 "\n", total); }

int qemu_plugin_install(qemu_plugin_id_t id, const void* about, int count, char** given) {
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, at_exit, 0);
    return 0;
}
