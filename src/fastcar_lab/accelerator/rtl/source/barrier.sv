// Who may start, by WEIGHTS:
//   0 private    each core, when it is idle and has a packet
//   1 lockstep   the cores of a round together, when each has its packet and all are idle
//   2 multicast  a round opens when all cores are idle and one of it has its packet; each then starts with its own
`default_nettype none
module barrier #(
    parameter int CORES = 2,
    parameter int WEIGHTS = 1
) (
    input  wire logic             clk,
    input  wire logic             rst,
    input  wire logic             dealt,      // the mapping is made: `computing` rows will come
    input  wire logic [5:0]       computing,
    input  wire logic [CORES-1:0] there,      // a whole packet waits
    input  wire logic [CORES-1:0] core_idle,
    output wire logic [CORES-1:0] go,
    output wire logic [CORES-1:0] opens,      // a core's row, or the round it belongs to, opens
    output wire logic [CORES-1:0] member      // cores of the round that runs
);
  if (WEIGHTS != 0) begin : together
    logic [5:0]       left;
    logic [CORES-1:0] want, round, late;
    always_comb for (int c = 0; c < CORES; c++) want[c] = left > 6'(c);
    wire logic some = WEIGHTS == 2 ? (there & want) != '0 : (there & want) == want;
    wire logic start = left != 6'd0 && some && (&core_idle);
    assign go = there & (start ? want : WEIGHTS == 2 ? late : '0);
    assign opens = {CORES{start}};
    assign member = round;
    always_ff @(posedge clk) begin
      if (rst) {left, round, late} <= '0;
      else begin
        if (dealt) left <= computing;
        else if (start) left <= left > 6'(CORES) ? left - 6'(CORES) : '0;
        if (start) round <= want;
        late <= (start ? want : late) & ~go;
      end
    end
  end else begin : alone
    wire logic unused = &{1'b0, clk, rst, dealt, computing};
    assign go = there & core_idle;
    assign opens = go;
    assign member = '1;
  end
endmodule
`default_nettype wire
